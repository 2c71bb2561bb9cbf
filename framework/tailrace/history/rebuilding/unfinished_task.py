"""The state of a task under way along its tape, in the work folder: a later attempt continues from it.

Theory. The state is written at commits of the tape, by time, in one batch with the task's cut, the length of
its outputs, and what else the rest of the replay needs. A killed attempt loses only its work since that
commit. Two attempts at once do not share a folder: an attempt that finds the folder locked uses a folder of
its own, and starts from the beginning. Its result is the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from typing import Any, Self, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.engine.task import CommitBatch
from tailrace.core.errors import CorruptStateError, StateInUseError
from tailrace.history.reading.beginnings import rows_of_keys
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import Frame, OutputFrames, frames, is_whole
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.recorded_sends import Chains
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import MemoryStore, RocksStore, StateIdentity, StateMemory
from tailrace.state.store_cut import FORMAT, StoreCut, decode_store_cut

RowStore: TypeAlias = RocksStore | MemoryStore

_KEPT_ROW = rows.KEEP + b"rebuild"
"""One of the task's own rows, so it is not part of any snapshot."""


class Resumed(msgspec.Struct):
    """What is stored with the state of a task: the new failures, missing records and sends so far."""

    failed: int = 0
    shown: list[str] = []
    more_outputs: int = 0
    missing: int = 0
    sends: Chains = msgspec.field(default_factory=Chains)


class UnfinishedTask:
    """The folder of a task: its store, and its outputs if they are requested."""

    def __init__(self, unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> None:
        self._job, self._past, self._number = unit.job, past, unit.partition
        self._shared, self._own = work.tasks / str(self._number), work.tasks / f"{self._number}-{attempt}"
        self._folder = self._shared
        self.store = self._opened()
        self.outputs: OutputFrames | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self.outputs is not None:
            self.outputs.close()
        self.store.close()
        if self._folder == self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    @property
    def cut(self) -> bytes | None:
        """The cut of the state."""
        return None if self.store.cut is None else decode_store_cut(self.store.cut).core

    def _opened(self) -> RowStore:
        """The store of an earlier attempt, if it can be continued. Otherwise an empty store."""
        if self._job.request.execution.store == "memory":
            self._folder = self._own
            self._own.mkdir(parents=True)
            return MemoryStore()
        try:
            store = self._rocks()
        except StateInUseError:
            self._folder = self._own
            return self._rocks()
        except CorruptStateError:  # a power cut has damaged what an earlier attempt left
            shutil.rmtree(self._shared)
            return self._rocks()
        if not self._is_usable(store):
            store.close()
            shutil.rmtree(self._shared)
            store = self._rocks()
        return store

    def _rocks(self) -> RocksStore:
        return RocksStore(
            self._folder / "state", StateIdentity(self._past.plan.app, self._number), StateMemory()
        )

    def _is_usable(self, store: RocksStore) -> bool:
        """Whether a store is whole. A store that was being filled with a base has a negative position."""
        length = 0 if store.cut is None else decode_store_cut(store.cut).changelog_position
        return length >= 0 and is_whole(self._folder / "outputs", length)

    def resume(self, keys: Collection[Any] | None) -> Resumed:
        """Continue from an earlier attempt's state, or load some keys' rows at the task's beginning."""
        resumed = Resumed()
        if self.cut is None:
            begun = self._past.beginning(self._job, self._number)
            begun.load(self.store, rows_of_keys(self._past.plan, keys))
        elif (kept := self.store.get(_KEPT_ROW)) is not None:
            resumed = msgspec.msgpack.decode(kept, type=Resumed)
        if self._job.request.to.outputs != "none":
            length = 0 if self.store.cut is None else decode_store_cut(self.store.cut).changelog_position
            self.outputs = OutputFrames(self._folder / "outputs", length)
        return resumed

    def write(self, batch: CommitBatch, kept: Resumed) -> None:
        """Write the state of a commit, with the length of the outputs up to it."""
        length = 0 if self.outputs is None else self.outputs.length
        changed = batch.rows | batch.index_rows | {_KEPT_ROW: msgspec.msgpack.encode(kept)}
        self.store.write(changed, StoreCut(FORMAT, length, 0, batch.cut).encode())

    def finished_outputs(self) -> Iterator[Frame] | None:
        """All outputs; None if they are not requested."""
        if self.outputs is None:
            return None
        self.outputs.close()
        return frames(self._folder / "outputs")
