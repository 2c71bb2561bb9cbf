"""Two states of an app held against each other, whatever they are kept in: which keys differ, in what, from which event on.

Both sides give their rows in the order of keys, so one pass over both finds every key that differs, and holds no more than
the rows of one key. Equality is asked of bytes; only what differs is decoded. Where the two were written by different versions of
the code, equality is asked of what each of these reads (see ``as_read``): equal bytes may read differently.

From which event on two keys differ, no state can tell. But what a key went through is in the log: it is replayed for the
keys that differ, under the code of each side and up to where that side stands, and the first step is told after which
the two are not the same. Where no step is found, what the replays end with tells which side has what no event explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Any, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine import tape
from tailrace.core.engine.as_read import ReadAs, defaults_apart, read_the_same
from tailrace.core.engine.describe_rows import Change, instant, told
from tailrace.core.engine.observer import Call, Moment, Watch
from tailrace.core.engine.units import TIMER
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import TailraceError
from tailrace.core.records import RawOutput
from tailrace.history.app_history import AppHistory
from tailrace.history.beginnings import rows_of_keys, taped_beginning
from tailrace.history.comparing import cut_differences
from tailrace.history.comparing.differences import SHOWN
from tailrace.history.comparing.replayed_state import shown_key
from tailrace.history.driving import TapeSink, drive_along_tape, replay_of
from tailrace.log.interface import Log
from tailrace.state import MemoryStore

Row: TypeAlias = tuple[bytes, bytes]
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


class KeyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A key whose states differ. ``changes`` are label, first side, second side; ``since`` is found by ``explain``."""

    partition: int
    actor: str
    key: str
    key_bytes: bytes
    changes: tuple[Change, ...]
    since: str = ""


@dataclass(slots=True)
class Comparison:
    """What was compared and found."""

    rows: tuple[int, int] = (0, 0)
    keys: int = 0
    """Keys of actors that either side has."""
    count: int = 0
    """Keys that differ."""
    shown: list[KeyDifference] = field(default_factory=list[KeyDifference])
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
        versions = _versions(one.schema(number), other.schema(number))
        found.as_read |= bool(versions)
        _compare_defaults(one, other, versions, found)
        for (name, key), was, now in _matched(one.rows(number), other.rows(number)):
            found.keys += 1
            found.rows = (found.rows[0] + len(was), found.rows[1] + len(now))
            if (both := versions.get(name)) is None:
                if was == now:
                    continue
            else:
                sides = [_key_rows(name, key, side) for side in (was, now)]
                if read_the_same(both[0], sides[0], both[1], sides[1]):
                    continue
            found.count += 1
            if len(found.shown) < SHOWN:
                found.shown.append(_difference(number, name, actors.get(name), key, was, now, both))
    return found


def _matched(one: Iterator[Row], other: Iterator[Row]) -> Iterator[tuple[KeyOfActor, list[Row], list[Row]]]:
    """The rows of each key on both sides, key by key."""
    sides = [_by_key(side) for side in (one, other)]
    heads = [next(side, None) for side in sides]
    while True:
        prefixes = [head[0] for head in heads if head is not None]
        if not prefixes:
            return
        least = min(prefixes)
        pair: list[list[Row]] = []
        for at, head in enumerate(heads):
            if head is not None and head[0] == least:
                pair.append(head[1])
                heads[at] = next(sides[at], None)
            else:
                pair.append([])
        parts = rows.read_state_row(least)
        yield (parts.actor, parts.key), pair[0], pair[1]


def _by_key(found: Iterator[Row]) -> Iterator[tuple[bytes, list[Row]]]:
    state = (row for row in found if row[0][:1] == rows.STATE)
    for prefix, of_key in groupby(state, key=lambda row: rows.key_prefix(row[0])):
        yield prefix, list(of_key)


def _versions(one: bytes | None, other: bytes | None) -> dict[str, tuple[ReadAs, ReadAs]]:
    """What reads the two sides of those actors whose stored schemas differ."""
    if one == other or not one or not other:
        return {}
    before, after = decode_schemas(one), decode_schemas(other)
    return {
        name: (ReadAs(schema), ReadAs(after[name]))
        for name, schema in before.items()
        if name in after and after[name] != schema
    }


def _compare_defaults(
    one: Side, other: Side, versions: dict[str, tuple[ReadAs, ReadAs]], found: Comparison
) -> None:
    for name, both in versions.items():
        for attr, was, now in defaults_apart(*both):
            said = f"{name}.{attr} of a key of which nothing is stored: {was} in {one.name}, {now} in {other.name}"
            if said not in found.defaults:
                found.defaults.append(said)


def _key_rows(name: str, key: bytes, side: Sequence[Row]) -> KeyRows:
    prefix = rows.actor_prefix(name) + rows.escaped(key)
    return {row[len(prefix) :]: value for row, value in side}


def _difference(
    number: int,
    name: str,
    actor: ActorPlan | None,
    key: bytes,
    was: Sequence[Row],
    now: Sequence[Row],
    read_as: tuple[ReadAs, ReadAs] | None,
) -> KeyDifference:
    sides = [_key_rows(name, key, side) for side in (was, now)]
    if read_as is not None:
        sides = [reading.read(side) for reading, side in zip(read_as, sides, strict=True)]
    shown = repr(key) if actor is None else shown_key(actor, key)
    return KeyDifference(partition=number, actor=name, key=shown, key_bytes=key, changes=told(actor, *sides))


def _compare_cuts(number: int, one: Side, other: Side, found: Comparison) -> None:
    cuts = [None if not data else tape.decode_cut(data) for data in (one.cut(number), other.cut(number))]
    if one.canonical or other.canonical or len({cut.app for cut in cuts if cut is not None}) > 1:
        # Clock, watermarks and commits are those of another order, or of a service beside.
        found_apart = cut_differences.positions_apart(*({} if cut is None else cut.positions for cut in cuts))
    else:
        found_apart = cut_differences.apart(*cuts)
    if found_apart:
        found.cuts.append(f"partition {number} stands at {cut_differences.told(found_apart)}")


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
    for number in sorted({each.partition for each in found.shown}):
        wanted = [each for each in found.shown if each.partition == number]
        tracks = [_tracks(log, code, number, wanted) for code in (one, other)]
        for at, each in enumerate(found.shown):
            if each.partition == number:
                place = (each.actor, each.key_bytes)
                since = first_apart(tracks[0].get(place, []), tracks[1].get(place, []), names)
                found.shown[at] = msgspec.structs.replace(each, since=since)


Step: TypeAlias = tuple[str, bytes]
"""What happened, in words, and the rows of the key after it, as one byte string."""


def _tracks(
    log: Log, code: SideCode, number: int, wanted: Sequence[KeyDifference]
) -> dict[KeyOfActor, list[Step]]:
    actors = {actor.name: actor for actor in code.plan.actors}
    keys: set[Any] = set()
    for each in wanted:
        try:
            keys.add(actors[each.actor].key_codec.decode(each.key_bytes))
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


def first_apart(one: Sequence[Step], other: Sequence[Step], names: tuple[str, str]) -> str:
    """The first step after which what a key has been through is not the same, in words for a person."""
    for first, second in zip_longest(one, other):
        if first == second:
            continue
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
