"""Two states of an app held against each other, whatever they are kept in: which keys differ, in what, from which event on.

Which keys differ, and in what, one pass over both finds (see ``matched_rows``).

From which event on two keys differ, no state can tell. But what a key went through is in the log: it is replayed for the
keys that differ, under the code of each side and up to where that side stands, and the first step is told after which
the two are not the same. Where no step is found, what the replays end with tells which side has what no event explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine import tape
from tailrace.core.engine.as_read import defaults_apart
from tailrace.core.engine.describe_rows import instant, shown_key
from tailrace.core.engine.observer import Call, Moment, Watch
from tailrace.core.engine.units import TIMER
from tailrace.core.errors import TailraceError
from tailrace.core.records import RawOutput
from tailrace.history.app_history import AppHistory
from tailrace.history.beginnings import rows_of_keys, taped_beginning
from tailrace.history.comparing import cut_differences
from tailrace.history.comparing.differences import SHOWN, Difference, first_apart
from tailrace.history.comparing.matched_rows import MatchedKey, Readers, Row, matched_keys, readers_of
from tailrace.history.driving import TapeSink, drive_along_tape, replay_of
from tailrace.log.interface import Log
from tailrace.state import MemoryStore

KeyOfActor: TypeAlias = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Side:
    """One state: its name for a person, and per partition its rows (ascending; others than state are passed over) and cut.

    ``schema`` gives a partition's schema row, which tells what the code that wrote it reads.
    """

    name: str
    rows: Callable[[int], Iterator[Row]]
    cut: Callable[[int], bytes | None]
    schema: Callable[[int], bytes | None]
    canonical: bool = False
    """It was made in canonical order: its cut is no place on the service's tape."""


@dataclass(slots=True)
class Comparison:
    """What was compared and found."""

    rows: tuple[int, int] = (0, 0)
    keys: int = 0
    """Keys of actors that either side has."""
    count: int = 0
    """Keys that differ."""
    shown: list[Difference] = field(default_factory=list[Difference])
    """The first of them."""
    cuts: list[str] = field(default_factory=list[str])
    """Where the sides do not stand at the same place: what is compared are then different moments."""
    defaults: list[str] = field(default_factory=list[str])
    """What the sides read differently of keys of which nothing is stored."""
    as_read: bool = False
    """Different versions of the code have written them, so that what these read was compared, and not the bytes."""

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return bool(self.count or self.defaults)


def compare_states(plan: Plan, one: Side, other: Side) -> Comparison:
    """Hold two states of an app against each other, byte by byte.

    Raises:
        SnapshotError, StateFolderError: One cannot be read.
    """
    found = Comparison()
    actors = {actor.name: actor for actor in plan.actors}
    for number in range(plan.partitions):
        _compare_cuts(number, one, other, found)
        readers = readers_of(one.schema(number), other.schema(number))
        found.as_read |= bool(readers)
        _compare_defaults(one, other, readers, found)
        for key in matched_keys(one.rows(number), other.rows(number)):
            found.keys += 1
            found.rows = (found.rows[0] + len(key.was), found.rows[1] + len(key.now))
            if not key.differs(readers):
                continue
            found.count += 1
            if len(found.shown) < SHOWN:
                names = one.name, other.name
                found.shown.append(_difference(number, names, actors.get(key.actor), key, readers))
    return found


def _compare_defaults(one: Side, other: Side, readers: Readers, found: Comparison) -> None:
    for name, both in readers.items():
        for attr, was, now in defaults_apart(*both):
            said = f"{name}.{attr} of a key of which nothing is stored: {was} in {one.name}, {now} in {other.name}"
            if said not in found.defaults:
                found.defaults.append(said)


def _difference(
    number: int, names: tuple[str, str], actor: ActorPlan | None, found: MatchedKey, readers: Readers
) -> Difference:
    key = shown_key(actor, found.key)
    return Difference(
        kind="state",
        where=f"{found.actor}, key {key} (partition {number})",
        names=names,
        partition=number,
        actor=found.actor,
        key=key,
        key_bytes=found.key,
        changes=found.describe(actor, readers),
    )


def _compare_cuts(number: int, one: Side, other: Side, found: Comparison) -> None:
    cuts = [None if not data else tape.decode_cut(data) for data in (one.cut(number), other.cut(number))]
    if one.canonical or other.canonical or len({cut.app for cut in cuts if cut is not None}) > 1:
        # Clock, watermarks and commits are those of another order, or of a service beside.
        found_apart = cut_differences.position_changes(
            *({} if cut is None else cut.positions for cut in cuts)
        )
    else:
        found_apart = cut_differences.cut_changes(*cuts)
    if found_apart:
        found.cuts.append(f"partition {number} stands at {cut_differences.in_one_line(found_apart)}")


# --- from which event on


@dataclass(frozen=True, slots=True)
class SideCode:
    """What made a side: the app's declarations, and how far it had come in each partition (its cut; None: to the end)."""

    plan: Plan
    cut: Callable[[int], bytes | None]


def explain(log: Log, one: SideCode, other: SideCode, found: Comparison, names: tuple[str, str]) -> None:
    """Find, for the keys shown, from which event on they differ, and put it in ``since``.

    Raises what ``replay`` raises where the history cannot be replayed; what was found before stays.
    """
    for number in sorted({each.partition or 0 for each in found.shown}):
        wanted = [each for each in found.shown if each.partition == number]
        tracks = [_tracks(log, code, number, wanted) for code in (one, other)]
        for at, each in enumerate(found.shown):
            if each.partition == number:
                place = (each.actor or "", each.key_bytes or b"")
                since = first_step_apart(tracks[0].get(place, []), tracks[1].get(place, []), names)
                found.shown[at] = msgspec.structs.replace(each, since=since)


Step: TypeAlias = tuple[str, bytes]
"""What happened, in words, and the rows of the key after it, as one byte string."""


def _tracks(
    log: Log, code: SideCode, number: int, wanted: Sequence[Difference]
) -> dict[KeyOfActor, list[Step]]:
    actors = {actor.name: actor for actor in code.plan.actors}
    keys: set[Any] = set()
    for each in wanted:
        try:
            keys.add(actors[each.actor or ""].key_codec.decode(each.key_bytes or b""))
        except (KeyError, TailraceError):
            continue
    if not keys:
        return {}
    recorder = Recorder(code.plan)
    history = AppHistory(code.plan, log)
    data = code.cut(number) or history.committed(number).cut
    if not data:
        return {}
    cut = tape.decode_cut(data)
    store = MemoryStore()
    base = taped_beginning(history, number, cut).load(store, rows_of_keys(code.plan, keys)).core
    replay = replay_of(
        code.plan,
        number,
        store,
        base,
        history.source(number),
        lineage=cut.lineage,
        watch=Watch(recorder, frozenset(keys)),
        lenient=True,
        any_environment=True,
    )
    drive_along_tape(replay, history.tapes(number, cut.tape), cut.tape, TapeSink(store))
    return recorder.tracks


class Recorder:
    """Notes what every key has been through, and what its rows were after each step."""

    def __init__(self, plan: Plan) -> None:
        self.tracks: dict[KeyOfActor, list[Step]] = {}
        self._inputs = [one.name for one in plan.inputs]

    def begins(self, call: Call) -> None:
        """See ``Observer.begins``."""

    def call(self, _call: Call, handler: Callable[..., None], *arguments: Any) -> None:
        """See ``Observer.call``."""
        handler(*arguments)

    def returned(self, call: Call, _outputs: Sequence[RawOutput]) -> None:
        """See ``Observer.returned``."""
        if call.actor is not None:
            after = msgspec.msgpack.encode(sorted(call.rows().items()))
            self._note(call.actor, call.moment, f"{self._place(call.moment)} ({call.handler})", after)

    def passed_over(self, moment: Moment, why: str) -> None:
        """See ``Observer.passed_over``."""

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes) -> None:
        """See ``Observer.expired``."""
        self._note(actor, moment, f"the expiry of {what!r} at {instant(moment.at)}", b"")

    def _note(self, actor: ActorPlan, moment: Moment, said: str, after: bytes) -> None:
        place = (actor.name, actor.key_codec.encode(moment.key))
        self.tracks.setdefault(place, []).append((said, after))

    def _place(self, moment: Moment) -> str:
        if moment.input == TIMER:
            return f"timer {moment.timer or ''} at {instant(moment.at)}".replace("  ", " ")
        return f"{self._inputs[moment.input]} @{moment.at:,}, event time {instant(moment.event_time)}"


def first_step_apart(one: Sequence[Step], other: Sequence[Step], names: tuple[str, str]) -> str:
    """The first step after which what a key has been through is not the same, in words for a person."""
    pair = first_apart(one, other)
    if pair is not None:
        first, second = pair
        if first is None or second is None:
            which = names[0] if second is None else names[1]
            said = first or second
            assert said is not None
            return f"since {said[0]}, which only {which} has seen"
        if first[0] == second[0]:
            return f"since {first[0]}"
        return f"since {first[0]} in {names[0]}, {second[0]} in {names[1]}"
    if not one:
        return "no event of the log concerns this key"
    return f"no event explains it: a replay of both comes to the same, last with {one[-1][0]}"
