"""The state of a first run held against that of its replay.

Equality is asked of bytes, in one pass: rows come in the order of their keys, so two stores are merged as they are
scanned. Only what differs is decoded, and told field by field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.declare.schema import decode_schemas
from tailrace.core.engine import tape
from tailrace.core.engine.as_read import ReadAs, read_the_same
from tailrace.core.engine.describe_rows import changes, instant, told
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import TailraceError
from tailrace.core.storage import StateReader
from tailrace.history.comparing.differences import SHOWN, Difference, Differences


@dataclass(frozen=True, slots=True)
class LiveState:
    """The state of a partition as the first run left it: where it was read from, and the cut it stands at.

    ``indexed``: it has the rows of the index. ``group`` names what it is a part of.
    """

    name: str
    store: StateReader
    cut: bytes | None
    indexed: bool
    group: str = ""


def compare_state(
    plan: Plan,
    partition: int,
    live: LiveState,
    replayed: StateReader,
    keys: Collection[Any] | None,
    into: Differences,
) -> int:
    """Compare the rows of all keys, or of some; returns how many the replay has.

    Where the declarations have changed since the first commit, live rows may be of another form than the replay's, and hold
    what nothing declares any more, which only the code of then can make: what is compared is then what is read of both.
    """
    found: dict[tuple[str, bytes], None] = {}
    read_as = [_read_as(plan, store.get(rows.SCHEMA_ROW)) for store in (live.store, replayed)]
    changed = live.store.get(rows.SCHEMA_ROW) != replayed.get(rows.SCHEMA_ROW)
    count = 0
    for start, stop in _ranges(plan, keys):
        count += _merge(live.store.scan(start, stop), replayed.scan(start, stop), found)
    actors = {one.name: one for one in plan.actors}
    for name, key in found:
        actor = actors.get(name)
        if actor is None:
            continue  # its state is kept though nothing declares it any more: only the code of then can make it
        if changed and name in read_as[0] and name in read_as[1]:
            was, now = (_rows_of_key(store, actor, key) for store in (live.store, replayed))
            if read_the_same(read_as[0][name], was, read_as[1][name], now):
                continue
        if into.count >= SHOWN:
            into.count += 1
            continue
        into.add(_of_key(plan, partition, live, replayed, actor, key))
    return count


def _ranges(plan: Plan, keys: Collection[Any] | None) -> Iterator[tuple[bytes, bytes]]:
    if keys is None:
        yield rows.STATE, rows.prefix_end(rows.STATE)
        return
    for actor in plan.actors:
        for key in keys:
            try:
                prefix = rows.actor_prefix(actor.name) + rows.escaped(actor.key_codec.encode(key))
            except TailraceError:
                continue  # a key of another type
            yield prefix, rows.prefix_end(prefix)


def _merge(
    live: Iterator[tuple[bytes, bytes]],
    replayed: Iterator[tuple[bytes, bytes]],
    found: dict[tuple[str, bytes], None],
) -> int:
    """Note the keys whose rows differ; returns how many rows there are on the second side."""
    count = 0
    one, other = next(live, None), next(replayed, None)
    while one is not None or other is not None:
        if one == other:
            count += 1
            one, other = next(live, None), next(replayed, None)
            continue
        row = min(side[0] for side in (one, other) if side is not None)
        parts = rows.read_state_row(row)
        found[parts.actor, parts.key] = None
        if one is not None and one[0] == row:
            one = next(live, None)
        if other is not None and other[0] == row:
            count += 1
            other = next(replayed, None)
    return count


def _rows_of_key(store: StateReader, actor: ActorPlan, key: bytes) -> KeyRows:
    prefix = rows.actor_prefix(actor.name) + rows.escaped(key)
    return {row[len(prefix) :]: value for row, value in store.scan(prefix, rows.prefix_end(prefix))}


def _read_as(plan: Plan, schemas: bytes | None) -> dict[str, ReadAs]:
    """What reads each actor, of what the plan declares."""
    known = decode_schemas(schemas) if schemas else {}
    return {
        actor.name: ReadAs(known[actor.name], {one.name for one in actor.schema.fields})
        for actor in plan.actors
        if actor.name in known
    }


def _of_key(
    plan: Plan, partition: int, live: LiveState, replayed: StateReader, actor: ActorPlan, key: bytes
) -> Difference:
    was, now = _rows_of_key(live.store, actor, key), _rows_of_key(replayed, actor, key)
    shown = shown_key(actor, key)
    return Difference(
        kind="state",
        partition=partition,
        where=f"the state of {actor.name}, key {shown} (app {plan.app!r} partition {partition}) differs",
        source=live.name,
        actor=actor.name,
        key=shown,
        changes=told(actor, was, now),
        detail="" if was and now else f"{live.name if now else 'the replay'} has no such instance",
    )


def shown_key(actor: ActorPlan, key: bytes) -> str:
    """A key as Python writes it; its bytes where it cannot be read."""
    try:
        return repr(actor.key_codec.decode(key))
    except TailraceError:
        return repr(key)


def compare_cuts(
    plan: Plan, partition: int, live: LiveState, replayed: bytes | None, into: Differences
) -> None:
    """Compare where both stand: positions, watermarks, counts."""
    # An earlier version may have written the same cut in other bytes.
    if live.cut == replayed or (
        live.cut and replayed and tape.decode_cut(live.cut) == tape.decode_cut(replayed)
    ):
        return
    was, now = (
        {} if cut is None else {k: repr(v) for k, v in msgspec.structs.asdict(tape.decode_cut(cut)).items()}
        for cut in (live.cut, replayed)
    )
    into.add(
        Difference(
            kind="position",
            partition=partition,
            where=f"app {plan.app!r} partition {partition} stands elsewhere",
            source=live.name,
            changes=tuple(changes(was, now)),
        )
    )


def check_index(plan: Plan, partition: int, live: LiveState, into: Differences) -> None:
    """The index names every timer at its time, and every expiry at its time or earlier: that is then looked up."""
    earliest: dict[tuple[int, str, bytes, bytes], int] | None = None
    for row, value in live.store.scan(rows.STATE, rows.prefix_end(rows.STATE)):
        for needed in rows.derived_index_rows(row, None, value):
            if live.store.get(needed) is not None:
                continue
            time_ms, actor, key, name = rows.read_index_row(needed)
            if name[:1] == rows.EXPIRY:
                earliest = _earliest(live.store) if earliest is None else earliest
                found_ms = earliest.get((needed[1], actor, key, name))
                if found_ms is not None and found_ms <= time_ms:
                    continue
            into.add(
                Difference(
                    kind="index",
                    partition=partition,
                    where=f"the index of app {plan.app!r} partition {partition} in {live.name} does not have {name!r} of "
                    f"{actor}, key {key!r}, due at {instant(time_ms)}",
                    source=live.name,
                    actor=actor,
                    detail="this is a mistake of the framework: please report it",
                )
            )


def _earliest(store: StateReader) -> dict[tuple[int, str, bytes, bytes], int]:
    earliest: dict[tuple[int, str, bytes, bytes], int] = {}
    for row, _ in store.scan(rows.INDEX, rows.prefix_end(rows.INDEX)):
        time_ms, actor, key, name = rows.read_index_row(row)
        earliest.setdefault((row[1], actor, key, name), time_ms)
    return earliest
