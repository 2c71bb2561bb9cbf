"""Compares the state of a first run with that of its replay.

Two stores are scanned and matched key by key (see ``matched_rows``). Cuts and the index are compared as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import changes, instant, shown_key
from tailrace.core.errors import StateInUseError, TailraceError
from tailrace.core.storage import StateReader
from tailrace.history.comparing.differences import SHOWN, Difference, Differences
from tailrace.history.comparing.matched_rows import MatchedKey, matched_keys, readers_of
from tailrace.history.reading.generations import folder_of
from tailrace.state import RocksStore, StateIdentity
from tailrace.state.folder import LABEL
from tailrace.state.store_cut import decode_store_cut


@dataclass(frozen=True, slots=True)
class LiveState:
    """The state of a partition after the first run: the name of its source, its rows, and its cut."""

    name: str
    store: StateReader
    cut: bytes | None
    indexed: bool
    """It has the rows of the index."""
    group: str = ""
    """The name of the whole that it is a part of."""


def compare_state(
    plan: Plan,
    partition: int,
    live: LiveState,
    replayed: StateReader,
    keys: Collection[Any] | None,
    into: Differences,
) -> int:
    """Compare the rows of all keys, or of some. Returns the number of rows of the replay.

    If declarations have changed since the first commit, values are compared, of what is still declared.
    """
    readers = readers_of(live.store.get(rows.SCHEMA_ROW), replayed.get(rows.SCHEMA_ROW), plan)
    actors = {one.name: one for one in plan.actors}
    count = 0
    for start, stop in _ranges(plan, keys):
        for key in matched_keys(live.store.scan(start, stop), replayed.scan(start, stop)):
            count += len(key.now)
            # The state of an actor that is no longer declared is kept, and no replay produces it.
            actor = actors.get(key.actor)
            if actor is None or key.was == key.now or not key.differs(readers):
                continue
            if into.count >= SHOWN:
                into.count += 1
            else:
                into.add(_of_key(plan, partition, live, actor, key))
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


def _of_key(plan: Plan, partition: int, live: LiveState, actor: ActorPlan, found: MatchedKey) -> Difference:
    key = shown_key(actor, found.key)
    return Difference(
        kind="state",
        where=f"the state of {actor.name}, key {key} (app {plan.app!r} partition {partition}) differs",
        names=(live.name, "the replay"),
        partition=partition,
        actor=actor.name,
        key=key,
        key_bytes=found.key,
        changes=found.describe(actor, {}),
        detail=""
        if found.was and found.now
        else f"{live.name if found.now else 'the replay'} has no such instance",
    )


def compare_cuts(
    plan: Plan, partition: int, live: LiveState, replayed: bytes | None, into: Differences
) -> None:
    """Compare the cuts: positions, watermarks, counts. An input that the first run did not read has neither."""
    if live.cut == replayed:
        return
    cuts = [None if cut is None else tape.decode_cut(cut) for cut in (live.cut, replayed)]
    if cuts[0] is not None and cuts[1] is not None:
        cuts[1] = without_added(cuts[1], cuts[0].positions)
        if cuts[0] == cuts[1]:
            return
    was, now = ({} if cut is None else _shown(cut) for cut in cuts)
    into.add(
        Difference(
            kind="position",
            partition=partition,
            where=f"app {plan.app!r} partition {partition} stands elsewhere",
            names=(live.name, "the replay"),
            changes=tuple(changes(was, now)),
        )
    )


def without_added(cut: tape.Cut, inputs: Collection[str]) -> tape.Cut:
    """The cut without inputs that were added since and of which nothing was read."""
    added = cut.positions.keys() - {*inputs}
    return msgspec.structs.replace(
        cut,
        positions={name: at for name, at in cut.positions.items() if name not in added},
        watermarks={name: mark for name, mark in cut.watermarks.items() if name not in added},
    )


def _shown(cut: tape.Cut) -> dict[str, str]:
    """The parts of a cut as text."""
    parts = msgspec.structs.asdict(cut).items()
    shown = {name: repr(value).replace(str(NO_WATERMARK), "none") for name, value in parts}
    shown["watermark"] = instant(cut.watermark)
    for name in ("watermarks", "operators"):
        shown[name] = repr({one: instant(mark) for one, mark in getattr(cut, name).items()})
    return shown


def check_index(plan: Plan, partition: int, live: LiveState, into: Differences) -> None:
    """Check that the index has every timer and every expiry, at its time or earlier."""
    earliest: dict[tuple[int, str, bytes, bytes], int] | None = None
    for row, value in live.store.scan(rows.STATE, rows.prefix_end(rows.STATE)):
        for needed in rows.derived_index_rows(row, None, value):
            if live.store.get(needed) is not None:
                continue
            time_ms, actor, key, name = rows.read_index_row(needed)
            earliest = _earliest(live.store) if earliest is None else earliest
            found_ms = earliest.get((needed[1], actor, key, name))
            if found_ms is not None and found_ms <= time_ms:
                continue
            into.add(
                Difference(
                    kind="index",
                    partition=partition,
                    where=f"the index of app {plan.app!r} partition {partition} in {live.name} does not have "
                    f"{name!r} of {actor}, key {key!r}, due at {instant(time_ms)}",
                    names=(live.name, "the replay"),
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


class LiveFolder:
    """The state folders of the tasks of a plan that was located. One is open, and locked, until the next one is requested."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.notes: list[str] = []
        """The folders that could not be used."""
        self._folder = folder_of(folder / plan.app, plan)
        self._app = plan.app
        self._open = ExitStack()

    def states(self, number: int) -> Sequence[LiveState]:
        """The state of a partition, if its folder exists, is not in use, and is complete.
        Raises StateFolderError: the folder is damaged, or holds something else.
        """
        self._open.close()
        place = self._folder / str(number)
        if not (place / LABEL).is_file():
            self.notes.append(f"there is no state in {place}: state is compared with the changelog only")
            return ()
        try:
            store = RocksStore(place, StateIdentity(self._app, number))
        except StateInUseError:
            self.notes.append(f"{place} is in use: its state is compared with the changelog only")
            return ()
        self._open.callback(store.close)
        cut = None if store.cut is None else decode_store_cut(store.cut)
        if cut is None or cut.core is None:
            self.notes.append(f"{place} holds no whole state: state is compared with the changelog only")
            return ()
        return (LiveState(str(place), store, cut.core, indexed=True, group=f"the state in {self._folder}"),)

    def close(self) -> None:
        """Close the folder that is open."""
        self._open.close()
