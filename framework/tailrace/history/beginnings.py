"""Where a task's history begins: with nothing, or with the snapshot that its tape names as its base.

A task that was started from a snapshot has a tape record without causes that names it (see ``snapshots.start_from_snapshot``). What came
before that record does not lead to what came after it. So whoever runs the task again, a replay or a rebuild, begins
behind the last such record, with the rows of that snapshot and the cut that the task was started with, which is made of
the snapshot's own and of what the record says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import CorruptStateError, SnapshotError, SnapshotMismatchError
from tailrace.core.records import CHANNEL
from tailrace.core.storage import Store
from tailrace.history.dead_letters.handled import handled_in
from tailrace.state.snapshots import Manifest, Place, Snapshot, Snapshots
from tailrace.state.store_cut import FORMAT, UNFINISHED, StoreCut

_BATCH = 20_000


class Beginning(NamedTuple):
    """The base of a task: what its tape goes on from."""

    number: int
    """Of the first tape record that is to be taken."""
    cut: tape.Cut
    rows: Iterable[tuple[bytes, bytes]]
    """Those of the snapshot, ascending, the schema first; without an index. To be gone through once."""


def beginning_of(
    plan: Plan, partition: int, records: Iterable[tape.TapeRecord], cut: tape.Cut
) -> Beginning | None:
    """Where the history of a task that stands at ``cut`` begins; None for one that began with nothing.

    ``records`` is its tape, from whatever record up to the cut.

    Raises:
        SnapshotMismatchError: The snapshot that it was started from is not there any more, or damaged.
        CorruptStateError: The tape names none.
    """
    if not cut.base:
        return None
    last = base_record(records)
    if last is None or last.base is None:
        raise CorruptStateError(
            f"the app {plan.app!r} partition {partition} was started from snapshot {cut.base}, and its tape does not say so",
            hint="A part of the tape is missing: what is to be replayed needs all of it.",
        )
    try:
        snapshot = open_base(last.base)
        begun = begun_cut(plan.app, snapshot.manifest, partition, last, cut.base)
    except SnapshotError as error:
        raise SnapshotMismatchError(
            f"the history of the app {plan.app!r} partition {partition} begins with the snapshot {cut.base}, which "
            f"cannot be used: {error.what}",
            hint="Bring it back to where it was; without it there is only what came after.",
        ) from error
    return Beginning(last.number + 1, begun, rows_of(snapshot, partition))


def base_record(records: Iterable[tape.TapeRecord]) -> tape.TapeRecord | None:
    """The last record of a tape that names a base."""
    last: tape.TapeRecord | None = None
    for record in records:
        if record.base is not None:
            last = record
    return last


def load_beginning(plan: Plan, begun: Beginning, store: Store, keys: Collection[Any] | None = None) -> bytes:
    """Fill an empty store with the rows of a beginning, of some keys or of all, and their index; the cut to start with."""
    codecs = {actor.name: actor.key_codec for actor in plan.actors}

    def is_wanted(row: bytes) -> bool:
        if keys is None or row[:1] != rows.STATE:
            return True
        parts = rows.read_state_row(row)
        codec = codecs.get(parts.actor)
        return codec is not None and codec.decode(parts.key) in keys

    cut = tape.encode(begun.cut)
    fill(
        store,
        ((row, value) for row, value in begun.rows if is_wanted(row)),
        StoreCut(FORMAT, UNFINISHED, 0, cut),
    )
    return cut


def fill(store: Store, found: Iterable[tuple[bytes, bytes]], cut: StoreCut) -> None:
    """Write rows and the index that goes with them; who is killed on the way leaves a store that is known to be of no use."""
    unfinished = StoreCut(FORMAT, UNFINISHED, cut.at_end_ms, None).encode()
    source = iter(found)
    while some := list(islice(source, _BATCH)):
        changed: dict[bytes, bytes | None] = dict(some)
        for row, value in some:
            if index := rows.derived_index_rows(row, None, value):
                changed.update(index)
        store.write(changed, unfinished)
    store.write({}, cut.encode())


def base_name(snapshot: Snapshot, uri: str) -> str:
    """What a tape record calls a snapshot: enough to open it again, from any folder."""
    return f"{Place.at(uri).uri}#{snapshot.manifest.app}/{snapshot.manifest.id}"


def open_base(name: str) -> Snapshot:
    """The snapshot that ``base_name`` named. Raises SnapshotError."""
    uri, app, found = base_parts(name)
    return Snapshots(uri, app).open(found)


def base_parts(name: str) -> tuple[str, str, str]:
    """The URI, the app and the id in what ``base_name`` gave."""
    uri, _, which = name.rpartition("#")
    app, _, found = which.partition("/")
    return uri, app, found


def begun_cut(app: str, manifest: Manifest, partition: int, record: tape.TapeRecord, base: str) -> tape.Cut:
    """The cut that a task was started with: that of the snapshot, at the positions and counts that the record notes."""
    of_snapshot = tape.decode_cut(manifest.task(partition).cut)
    before, operators = of_snapshot.app, of_snapshot.operators
    return msgspec.structs.replace(
        renamed(of_snapshot, lambda name: here(name, before, app)),
        app=app,
        positions=dict(zip(record.inputs or (), record.positions or (), strict=True)),
        operators=None
        if operators is None
        else {here(one, before, app): at for one, at in operators.items()},
        totals=msgspec.structs.replace(record.totals),
        tape=record.number + 1,
        base=base,
        predecessors=_predecessors(app, manifest, partition, of_snapshot),
    )


def renamed(cut: tape.Cut, name_of: Callable[[str], str]) -> tape.Cut:
    """A cut whose inputs have other names."""
    return msgspec.structs.replace(
        cut,
        positions={name_of(name): at for name, at in cut.positions.items()},
        watermarks={name_of(name): mark for name, mark in cut.watermarks.items()},
        generators={name_of(name): state for name, state in cut.generators.items()},
        idle=[name_of(name) for name in cut.idle],
        ended=[name_of(name) for name in cut.ended],
    )


def _predecessors(app: str, manifest: Manifest, partition: int, cut: tape.Cut) -> dict[str, tape.Predecessor]:
    """The apps whose histories an app goes on from that is started from a snapshot: that of the snapshot, and its own."""
    if app == cut.app:
        return cut.predecessors
    cuts = {one.partition: tape.decode_cut(one.cut) for one in manifest.tasks if one.cut}
    positions = {
        name: [
            cuts[number].positions.get(name, 0) if number in cuts else 0
            for number in range(manifest.partitions)
        ]
        for name in cut.positions
        if not is_own(name, cut.app)
    }
    handled: dict[str, list[int]] = {}
    for name, offset in sorted(handled_in(manifest.task(partition))):
        handled.setdefault(name, []).append(offset)
    return {**cut.predecessors, cut.app: tape.Predecessor(positions, handled)}


def here(name: str, before: str, app: str) -> str:
    """The name of an input under another name of the app: the app's own topics carry the app's name."""
    return f"{app}.{name.removeprefix(f'{before}.')}" if is_own(name, before) else name


def is_own(name: str, app: str) -> bool:
    """Whether an input is a topic that the app keeps for itself. Others may begin with its name as well."""
    if name == f"{app}.inbox" or name.startswith(f"{app}.inbox{CHANNEL}"):
        return True
    return name.startswith(f"{app}.") and name.endswith(".by-key")


def rows_of(snapshot: Snapshot, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a task as a store keeps them, without the index: the schema, then the state, ascending."""
    schema = snapshot.manifest.task(partition).schema
    if schema:
        yield rows.SCHEMA_ROW, schema
    yield from snapshot.rows(partition)
