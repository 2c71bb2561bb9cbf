"""The folder of one attempt at a task: the rows of its state, and its outputs if they are requested."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tailrace.core.engine.task import CommitBatch
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.output_files import Frame
from tailrace.state import MemoryStore, RocksStore, StateIdentity, StateMemory
from tailrace.state.store_cut import FORMAT, StoreCut, decode_store_cut


class TaskFolder:
    """Belongs to one attempt, which removes it when it ends. What a killed attempt leaves goes with the work folder.

    ``kept``: a store of somebody else, who closes it.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        tasks: Path,
        attempt: str,
        memory: StateMemory,
        kept: RocksStore | MemoryStore | None = None,
    ) -> None:
        self._path = tasks / f"{number}-{attempt}"
        self._path.mkdir(parents=True)
        self._is_kept = kept is not None
        self.store: RocksStore | MemoryStore = MemoryStore() if kept is None else kept
        if kept is None and job.request.execution.store == "rocks":
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
        if not self._is_kept:
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
