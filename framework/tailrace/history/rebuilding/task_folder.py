"""The files of one attempt at a task: its state and its outputs while it is under way, then its rows in the snapshot."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Self

from tailrace.core import rows
from tailrace.core.engine.task import CommitBatch
from tailrace.core.records import InputRecord
from tailrace.history.reading.in_flight import InFlight
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.output_files import Frame
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.results import StateFiles
from tailrace.state import MemoryStore, RocksStore, StateIdentity, StateMemory
from tailrace.state.snapshots import write_task
from tailrace.state.store_cut import FORMAT, StoreCut, decode_store_cut


class TaskFolder:
    """Belongs to one attempt, which removes it when it ends. What a killed attempt leaves goes with the work folder."""

    def __init__(self, job: Job, number: int, tasks: Path, attempt: str, memory: StateMemory) -> None:
        self._path = tasks / f"{number}-{attempt}"
        self._path.mkdir(parents=True)
        self.store: RocksStore | MemoryStore = MemoryStore()
        if job.request.execution.store == "rocks":
            identity = StateIdentity(job.app, number)
            self.store = RocksStore(self._path / "state", identity, memory)
        self.outputs: BlockWriter | None = None
        if job.request.to.outputs != "none":
            self.outputs = BlockWriter(self._path / "outputs")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self.outputs is not None:
            self.outputs.close()
        self.store.close()
        shutil.rmtree(self._path, ignore_errors=True)

    @property
    def cut(self) -> bytes | None:
        """The cut of the state."""
        return None if self.store.cut is None else decode_store_cut(self.store.cut).core

    def write(self, batch: CommitBatch) -> None:
        """Write the state of a commit."""
        self.store.write(batch.rows | batch.index_rows, StoreCut(FORMAT, 0, 0, batch.cut).encode())

    def finished_outputs(self) -> Iterator[Frame] | None:
        """All outputs; None if they are not requested."""
        if self.outputs is None:
            return None
        self.outputs.close()
        return iter(BlockReader[Frame](self.outputs.path, Frame))


class _Counted:
    """Iterates over rows, and counts the rows and keys of the actors."""

    def __init__(self, state: Iterable[tuple[bytes, bytes]], *, names: bool) -> None:
        self._state, self._names = state, names
        self.rows = self.keys = 0
        self.named = list[bytes]()

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        prefix, of_state = b"\0", rows.STATE[0]
        for pair in self._state:
            row = pair[0]
            if row[0] == of_state:
                self.rows += 1
                if not row.startswith(prefix):
                    prefix = rows.key_prefix(row)
                    self.keys += 1
                    if self._names:
                        self.named.append(rows.read_state_row(row).key)
            yield pair


def write_rows(
    job: Job,
    number: int,
    attempt: str,
    state: Iterable[tuple[bytes, bytes]],
    schema: bytes,
    past: HistorySource | None = None,
    messages: Iterable[InputRecord] = (),
) -> StateFiles:
    """Write the rows of a task, ascending, and ``messages`` in flight to it. With ``past``, these are those of the log."""
    counted, waiting = _Counted(state, names=bool(job.request.keys)), None
    if past is not None and not job.request.limited and not job.request.keys:
        flight = InFlight(past, {one.partition: one.cut for one in job.targets}, job.ends)
        waiting, messages = flight.waiting(number), flight.messages(number)
    files = write_task(job.folder, number, attempt, counted, messages=messages)
    return StateFiles(files, schema, counted.keys, counted.rows, tuple(counted.named), waiting)


def write_by_actor(
    job: Job, number: int, attempt: str, state: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, StateFiles]]:
    """Write the rows of each actor, ascending, to files of their own, with the first row. So the rows of several units can be put
    in order without reading them.
    """
    for at, (_, some) in enumerate(groupby(state, key=_actor_of)):
        first = next(some)
        yield first[0], write_rows(job, number, f"{attempt}-{at}", chain([first], some), b"")


def _actor_of(pair: tuple[bytes, bytes]) -> str:
    return rows.read_state_row(pair[0]).actor if pair[0][:1] == rows.STATE else ""
