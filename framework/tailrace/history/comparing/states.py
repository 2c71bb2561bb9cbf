"""Compares two states of an app, in any storage: the keys that differ, how, and the event that begins it.

One scan of both states finds the keys that differ, and their differences (see ``matched_rows``).

The states cannot tell from which event on two keys differ, but the log has the history of a key: it is
replayed for the keys that differ, with the code of each side and up to the cut of that side. The result names
the first step after which the two differ. If there is no such step, no event explains the difference, and the
result names the last step of both replays.
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
from tailrace.history.comparing import cut_differences
from tailrace.history.comparing.differences import SHOWN, Difference, first_apart
from tailrace.history.comparing.matched_rows import MatchedKey, Readers, Row, matched_keys, readers_of
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import rows_of_keys, taped_beginning
from tailrace.history.reading.driving import TapeSink, drive_along_tape, replay_of
from tailrace.log.interface import Log
from tailrace.state import MemoryStore

KeyOfActor: TypeAlias = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Side:
    """One state: its name for a person, and for each partition its rows (ascending; only state rows count)
    and its cut.

    ``schema`` returns a partition's schema row, which describes the values that the code that wrote it reads.
    """

    name: str
    rows: Callable[[int], Iterator[Row]]
    cut: Callable[[int], bytes | None]
    schema: Callable[[int], bytes | None]
    canonical: bool = False
    """It was made in canonical order: its cut is not a position on the service's tape."""


@dataclass(slots=True)
class Comparison:
    """The result of a comparison."""

    rows: tuple[int, int] = (0, 0)
    keys: int = 0
    """Number of keys of actors that either side has."""
    count: int = 0
    """Number of keys that differ."""
    shown: list[Difference] = field(default_factory=list[Difference])
    """The first of these keys."""
    cuts: list[str] = field(default_factory=list[str])
    """Differences of the cuts: with any, the states of different moments were compared."""
    defaults: list[str] = field(default_factory=list[str])
    """Differences in default values, which the sides read for keys without stored state."""
    as_read: bool = False
    """Different versions of the code have written the sides, so decoded values were compared, not bytes."""

    @property
    def differs(self) -> bool:
        """Whether the states differ."""
        return bool(self.count or self.defaults)


def compare_states(plan: Plan, one: Side, other: Side) -> Comparison:
    """Compare two states of an app, byte by byte.

    Raises:
        SnapshotError, StateFolderError: A state cannot be read.
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
            sides = f"{was} in {one.name}, {now} in {other.name}"
            text = f"{name}.{attr} of a key of which nothing is stored: {sides}"
            if text not in found.defaults:
                found.defaults.append(text)


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
        # Clock, watermarks and commits are those of another order, or of another service.
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
    """The code of a side: the app's declarations, and its cut in each partition (None: the last one)."""

    plan: Plan
    cut: Callable[[int], bytes | None]


def explain(log: Log, one: SideCode, other: SideCode, found: Comparison, names: tuple[str, str]) -> None:
    """Find the event from which on each shown key differs, and put it into ``since``.

    Raises the errors of ``replay`` if the history cannot be replayed; results found before that stay.
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
"""The event of a step, as text, and the rows of the key after it, as one byte string."""


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
    """Records the steps of every key, and its rows after each step."""

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

    def _note(self, actor: ActorPlan, moment: Moment, step: str, after: bytes) -> None:
        place = (actor.name, actor.key_codec.encode(moment.key))
        self.tracks.setdefault(place, []).append((step, after))

    def _place(self, moment: Moment) -> str:
        if moment.input == TIMER:
            return f"timer {moment.timer or ''} at {instant(moment.at)}".replace("  ", " ")
        return f"{self._inputs[moment.input]} @{moment.at:,}, event time {instant(moment.event_time)}"


def first_step_apart(one: Sequence[Step], other: Sequence[Step], names: tuple[str, str]) -> str:
    """The first step after which a key differs, as text for a person."""
    pair = first_apart(one, other)
    if pair is not None:
        first, second = pair
        if first is None or second is None:
            which = names[0] if second is None else names[1]
            step = first or second
            assert step is not None
            return f"since {step[0]}, which only {which} has seen"
        if first[0] == second[0]:
            return f"since {first[0]}"
        return f"since {first[0]} in {names[0]}, {second[0]} in {names[1]}"
    if not one:
        return "no event of the log concerns this key"
    return f"no event explains it: a replay of both comes to the same, last with {one[-1][0]}"
