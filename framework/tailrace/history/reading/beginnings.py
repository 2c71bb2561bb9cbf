"""The beginning of a task in a replay of its history: empty state, or the rows of a snapshot and a cut.

Theory. A ``Beginning`` holds this, and one function loads its rows into an empty store::

    a task begins with        when                               its cut
    empty state               there is no snapshot for it        none; it begins at offsets of its inputs
    the base on its tape      it was started from a snapshot     the snapshot's, at the positions and counts of the
                                                                 tape record that names the base
    a requested snapshot      a rebuild continues from it        the snapshot's own

A task that was started from a snapshot has a tape record without causes that names it, as the *base* of what follows
(see ``snapshots.start_from_snapshot``). A requested snapshot must be of the same history: ``provenance.judging.check_base``. Without a
snapshot the task begins with empty state, even if it was started from one.

A live task does not begin, it resumes: see ``runtime.restore``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import instant
from tailrace.core.errors import (
    KEPT_ELSEWHERE,
    CorruptStateError,
    OffsetGoneError,
    SnapshotError,
    SnapshotMismatchError,
    TailraceError,
)
from tailrace.core.names import inbox_of, is_own
from tailrace.core.storage import Store
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.handed_over import handed_over
from tailrace.history.reading.stretches import first
from tailrace.history.reading.tape_records import tape_record
from tailrace.log.interface import TopicPartition
from tailrace.state.contents import Contents
from tailrace.state.snapshots import Manifest, Place, Snapshot, Snapshots
from tailrace.state.store_cut import FORMAT, UNFINISHED, StoreCut

_BATCH = 20_000


@dataclass(frozen=True)
class Beginning:
    """The beginning of a task; see the head of this file."""

    partition: int
    lineage: bytes
    """The seed of its randomness."""
    snapshot: Snapshot | None = None
    """The snapshot that has its rows; None: it begins with empty state."""
    cut: bytes | None = None
    """The cut that it continues from; None: no cut. The tape records before ``Cut.tape`` are done."""
    positions: Mapping[str, int] = field(default_factory=dict[str, int])
    """By input, the first offset that it reads, as far as the log tells it. The cut comes before it."""

    @cached_property
    def decoded(self) -> tape.Cut | None:
        """The decoded cut."""
        return None if self.cut is None else tape.decode_cut(self.cut)

    @property
    def tape_number(self) -> int:
        """The number of the first tape record that it takes."""
        return 0 if self.decoded is None else self.decoded.tape

    @property
    def outputs(self) -> int:
        """The number of the first output that it makes."""
        return 0 if self.decoded is None else self.decoded.totals.outputs

    def abandoned(self, cut: bytes) -> dict[str, int]:
        """The positions in inputs that were left before or at the beginning of a rebuild which has ended with this cut."""
        if self.snapshot is None or self.decoded is None or not cut:
            return {}
        apps, reads = (self.snapshot.manifest.app, self.decoded.app), tape.decode_cut(cut).positions
        left = self.snapshot.manifest.task(self.partition).provenance.abandoned
        positions = {**{name: one.position for name, one in left.items()}, **self.decoded.positions}
        return {
            name: at
            for name, at in positions.items()
            if name not in reads and not any(is_own(name, app) for app in apps)
        }

    def load(self, store: Store, wanted: Callable[[bytes], bool] = lambda _: True) -> None:
        """Fill an empty store with the wanted rows and their index."""
        if self.snapshot is None:
            return
        contents = Contents()
        unfinished = StoreCut(FORMAT, UNFINISHED, 0, None).encode()
        found = (pair for pair in rows_of(self.snapshot, self.partition) if wanted(pair[0]))
        while some := list(islice(found, _BATCH)):
            changed: dict[bytes, bytes | None] = dict(some)
            contents = contents.applied(changed)
            for row, value in some:
                if index := rows.derived_index_rows(row, None, value):
                    changed.update(index)
            store.write(changed, unfinished)
        store.write({}, StoreCut(FORMAT, 0, 0, self.cut, contents=contents).encode())


def taped_beginning(
    history: AppHistory, partition: int, end: tape.Cut, asked: Snapshot | None = None
) -> Beginning:
    """The beginning of a task that is driven along its tape up to the cut ``end``. ``asked``: with this snapshot.
    Raises SnapshotMismatchError, CorruptStateError or OffsetGoneError.
    """
    entry = None if asked is None else asked.manifest.task(partition)
    if asked is not None and entry is not None and entry.cut:
        cut = tape.decode_cut(entry.cut)
        return Beginning(partition, end.lineage, asked, entry.cut, cut.positions)
    if end.base:
        return _base(history, partition, end)
    return Beginning(partition, end.lineage, positions=_first_positions(history, partition))


def stages_beginning(
    history: AppHistory, partition: int, end: bytes | None, asked: Snapshot | None, starts: Mapping[str, int]
) -> Beginning:
    """The beginning in stages, after those records that imported rows stand for. ``end``: the service's last cut, if any. ``starts``:
    by input, where the log began when the rebuild was settled; what it has deleted since is missed where it is read.
    """
    app = history.plan.app
    lineage = lineage_of(app, partition) if end is None else tape.decode_cut(end).lineage
    positions = dict(starts)
    for place, offset in handed_over(history.log, positions, positions).items():
        if place.partition == partition:
            positions[place.topic] = max(offset, positions[place.topic])
    cut = b"" if asked is None else asked.manifest.task(partition).cut
    if asked is not None:
        left = asked.manifest.task(partition).provenance.abandoned
        positions |= {name: one.position for name, one in left.items() if name in positions}
    return Beginning(partition, lineage, asked if cut else None, cut or None, positions)


def check_not_edited(history: AppHistory, partition: int, end: bytes | None) -> Iterator[str]:
    """Before a rebuild in stages from the first record: notes about what is not known. ``end``: the service's last cut, if any.
    Raises SnapshotMismatchError: a part of the history is in a snapshot only, which was edited or reshaped.
    """
    if end is None or not (cut := tape.decode_cut(end)).base:
        return
    edited, lost = "", "the beginning of the tape is gone"
    try:
        for name in (one.base for one in history.tapes(partition, cut.tape) if one.base is not None):
            found, lost = open_base(name), ""
            if any(one.source == "edited" for one in found.chain):
                edited = f"{Place.at(name.rpartition('#')[0]).shown}#{found.manifest.id}"
    except TailraceError as error:
        lost = error.what
    if edited:
        raise SnapshotMismatchError(
            f"the history of the app {history.plan.app!r} on this log begins with the snapshot {edited}, which was edited or reshaped: "
            "a rebuild in stages from the first record would leave out what only this snapshot has",
            hint=f"Continue from it (tailrace rebuild --order stages --from-snapshot {edited}), and start from the result with "
            "--replace-state. Or work on the old log.",
        )
    if lost:
        yield f"the history begins with a snapshot, which is left out, and may have been edited: {lost}"


def lineage_of(app: str, partition: int) -> bytes:
    """The seed of a task that has no past."""
    return hashlib.sha256(f"tailrace:{app}/{partition}".encode()).digest()[:16]


def check_tape_begins(history: AppHistory, partition: int) -> None:
    """Raises OffsetGoneError if the log has deleted the beginning of a tape."""
    topic = history.plan.tape_topic
    if deleted := history.log.start_offset(topic, partition):
        raise OffsetGoneError(
            f"the log has deleted the first {deleted} records of the tape",
            topic=topic,
            partition=partition,
            offset=0,
            hint=f"Start from a snapshot (--from-snapshot), read {KEPT_ELSEWHERE}, or go without it "
            "(--order stages).",
        )


def rows_of_keys(plan: Plan, keys: Collection[Any] | None) -> Callable[[bytes], bool]:
    """A predicate for the rows of some keys (None: of all) and the rows without a key."""
    codecs = {actor.name: actor.key_codec for actor in plan.actors}

    def is_wanted(row: bytes) -> bool:
        if keys is None or row[:1] != rows.STATE:
            return True
        parts = rows.read_state_row(row)
        codec = codecs.get(parts.actor)
        return codec is not None and codec.decode(parts.key) in keys

    return is_wanted


def rows_of(snapshot: Snapshot, partition: int) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a task in the form of a store, without the index: the schema, then the state, ascending."""
    schema = snapshot.manifest.task(partition).schema
    if schema:
        yield rows.SCHEMA_ROW, schema
    yield from snapshot.rows(partition)


def check_whole(snapshot: Snapshot, plan: Plan, keys: Collection[str] = ()) -> None:
    """Check that a snapshot leaves nothing out that continues from it. ``keys``: only these do.

    Raises SnapshotMismatchError: it does, or it has another number of partitions.
    """
    manifest = snapshot.manifest
    if manifest.partitions != plan.partitions:
        raise SnapshotMismatchError(
            f"the snapshot {manifest.id} has {manifest.partitions} partitions, the app {plan.app!r} has "
            f"{plan.partitions}",
            hint=f"Its keys are spread over {manifest.partitions}: give the app partitions={manifest.partitions}, or begin "
            "without it.",
        )
    for one in snapshot.chain:
        if one.as_of_ms is not None:
            raise SnapshotMismatchError(
                f"the snapshot {manifest.id} is as of {instant(one.as_of_ms)}: it has left out events from before its "
                "positions, which would be lost",
                hint="Start from one that was made without --as-of.",
            )
        if one.keys and not (keys and {*keys} <= {*one.keys}):
            raise SnapshotMismatchError(
                f"the snapshot {manifest.id} holds the keys {', '.join(one.keys)} only: all others would be gone",
                hint="Start from a whole one. A rebuild may ask for these keys (--key), if the app does not send to itself.",
            )


def _base(history: AppHistory, partition: int, end: tape.Cut) -> Beginning:
    """The beginning with the snapshot that the task was last started from, by its tape."""
    app, record = history.plan.app, None
    for one in history.tapes(partition, end.tape):
        if one.base is not None:
            record = one
    if record is None or record.base is None:
        check_tape_begins(history, partition)
        raise CorruptStateError(
            f"the app {app!r} partition {partition} was started from snapshot {end.base}, and its tape does not say so",
            hint="A part of the tape is missing. A replay needs all of it; a rebuild can continue from a snapshot that was "
            "taken later (--from-snapshot).",
        )
    try:
        snapshot = open_base(record.base)
        cut = begun_cut(app, snapshot.manifest, partition, record, end.base)
    except SnapshotError as error:
        raise SnapshotMismatchError(
            f"the history of the app {app!r} partition {partition} begins with the snapshot {end.base}, which "
            f"cannot be used: {error.what}",
            hint="Bring it back to where it was; without it there is only what came after. A rebuild in stages "
            "(--order stages) begins with the log.",
        ) from error
    return Beginning(partition, end.lineage, snapshot, tape.encode(cut), cut.positions)


def _first_positions(history: AppHistory, partition: int) -> dict[str, int]:
    """The offset of each input at which a task began its first run, by the first record of its tape."""
    place = TopicPartition(history.plan.tape_topic, partition)
    found = first(history.log, *place)
    record = None if found is None else tape_record(place, found)
    if record is None or record.number or record.inputs is None:
        return {}
    taken = [0] * len(record.inputs)
    for code, *said in tape.causes_of(record.causes):
        if code == tape.RUN:
            taken[said[0]] += said[1]
    known = history.log.topics()
    return {
        name: end - count
        for name, end, count in zip(record.inputs, record.positions or (), taken, strict=True)
        if name in known
    }


# --- the name of a snapshot on a tape, and the cut that a task continues from


def base_name(snapshot: Snapshot, uri: str) -> str:
    """The name of a snapshot in a tape record. It is enough to open the snapshot from any working folder."""
    return f"{Place.at(uri).uri}#{snapshot.manifest.app}/{snapshot.manifest.id}"


def open_base(name: str) -> Snapshot:
    """The snapshot of a name that ``base_name`` returned. Raises SnapshotError."""
    uri, _, which = name.rpartition("#")
    app, _, found = which.partition("/")
    return Snapshots(uri, app).open(found)


def begun_cut(app: str, manifest: Manifest, partition: int, record: tape.TapeRecord, base: str) -> tape.Cut:
    """The cut that a task was started with: the snapshot's, at the positions and counts of the tape record.
    Raises SnapshotMismatchError: the tape record does not follow the snapshot.
    """
    of_snapshot = tape.decode_cut(manifest.task(partition).cut)
    if not record.follows(of_snapshot.identity):
        raise SnapshotMismatchError(
            f"the snapshot {manifest.id} of app {manifest.app!r} is not the one that partition {partition} was started from: "
            f"it stands at a commit with the identity {tape.shown_identity(of_snapshot.identity)}, and commit {record.number} "
            "does not follow that",
            hint="Bring back the snapshot that was there.",
        )
    before, inbox = of_snapshot.app, inbox_of(app)
    ordered = {
        operator: msgspec.structs.replace(
            one,
            lows={here(name, before, app): low for name, low in one.lows.items()},
            late={here(name, before, app): late for name, late in one.late.items()},
        )
        for operator, one in of_snapshot.ordered.items()
    }
    for operator, low in record.flight.items():
        found = ordered.setdefault(operator, tape.Ordered(of_snapshot.operators[operator], None, {}))
        found.lows = {**found.lows, inbox: low}
    return msgspec.structs.replace(
        of_snapshot,
        app=app,
        positions=dict(zip(record.inputs or (), record.positions or (), strict=True)),
        watermarks={here(name, before, app): mark for name, mark in of_snapshot.watermarks.items()},
        idle=[here(name, before, app) for name in of_snapshot.idle],
        operators={here(name, before, app): at for name, at in of_snapshot.operators.items()},
        ordered=ordered,
        totals=msgspec.structs.replace(record.totals),
        tape=record.number + 1,
        base=base,
        identity=record.identity,
    )


def here(name: str, before: str, app: str) -> str:
    """The name of an input after the app is renamed: the app's internal topics carry its name."""
    return f"{app}.{name.removeprefix(f'{before}.')}" if is_own(name, before) else name
