"""One partition of an app at work: restored, run slice by slice, committed, given back.

Rules of this file. It decides when, never what. Every cause goes through the task, so it is on the tape. It has one
thread, and no clock but the one it was given. Its states are the table in ``lifecycle``, what a slice does is in
``slices``, the order of restoring in ``restore``.

A commit, in this order::

    outputs, changelog rows, cut, tape    -> the open transaction    ``stage``
    input offsets, and the commit itself  -> the log                 from here on it is true
    the same rows, the same cut           -> the store               ``complete``; so it is never ahead of the log
    the task                                                         so it reads back what it wrote

Partitions whose writers share a transaction are committed together (``commits``): all stage, one commit, all complete.

Failure. The state in memory is between two commits, and is useless without its transaction. So every failure that does
not leave both intact ends the partition: the transaction is aborted, the memory dropped,
and the worker makes a new partition, which restores. An exception that is no ``Exception`` (a simulated kill, Ctrl-C)
passes through untouched, as the process's own end would.

Where only the transaction is gone, by the failure of another partition that shares it, the partition is rolled back: it continues
from the last commit, which its store has. The task has not changed hands: a new owner would have fenced the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.intake import refill
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.task import CommitBatch, Task
from tailrace.core.errors import KEPT_ELSEWHERE, FencedError, TailraceError
from tailrace.core.handling.promises import Promises
from tailrace.core.names import transactional_id
from tailrace.core.storage import Store
from tailrace.history.provenance.judging import new_nonce
from tailrace.history.reading.replayable import check_kept
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import Log, Part, Reader, TopicPartition, Transaction, Writer
from tailrace.runtime.clocks import Clock, steps_forward
from tailrace.runtime.commit_notes import NONE_PASSED
from tailrace.runtime.commits import commit_together
from tailrace.runtime.lifecycle import Event, Lifecycle, State
from tailrace.runtime.restore import Restore, Restored, await_log
from tailrace.runtime.slices import PartitionSettings, Slices
from tailrace.state.contents import Contents, StoreContents
from tailrace.state.store_cut import FORMAT, StoreCut, decode_store_cut


class Partition:
    """One task, its place in the log and its store. See the head of this file.

    ``store`` is the partition's own, and closed with it. ``reader`` may be shared among the partitions of a worker. ``lineage`` seeds the
    randomness of a task that was never committed. ``draw_nonce`` gives new random bytes at each restore, for the identities of the
    commits (see ``core.engine.tape``). ``elapsed`` measures durations (default: by the steps forward of ``clock``). ``on_committed`` is called once with each batch that is durable (see ``commits``).
    ``check_owned`` is called right before a take-over, and raises ``FencedError`` where the task has another owner.
    """

    def __init__(
        self,
        plan: Plan,
        partition: int,
        log: Log,
        store: Store,
        clock: Clock,
        *,
        elapsed: Clock | None = None,
        lineage: bytes,
        draw_nonce: Callable[[], bytes] = new_nonce,
        reader: Reader | None = None,
        settings: PartitionSettings | None = None,
        on_committed: Callable[[CommitBatch], None] | None = None,
        check_owned: Callable[[], None] = lambda: None,
        watch: Watch | None = None,
    ) -> None:
        self.plan = plan
        self.partition = partition
        self.settings = settings or PartitionSettings()
        self.lifecycle = Lifecycle(f"{plan.app}/{partition}")
        self.error: Exception | None = None
        """The error that ended it, if any."""
        self._log = log
        self._store = store
        self._clock = clock
        self._elapsed = steps_forward(clock) if elapsed is None else elapsed
        self._lineage = lineage
        self._draw_nonce = draw_nonce
        self._own_reader = reader is None
        self._reader = log.reader({}) if reader is None else reader
        self._on_committed = on_committed
        self._promises = Promises()
        self._made_ms = self._elapsed()
        self.restore_ms: int | None = None
        """How long it took from its making until it was at work."""
        self._check_owned = check_owned
        self._watch = watch
        self._writer: Writer | None = None
        self._slices: Slices | None = None
        self._restoring: Generator[bool, None, None] | None = None
        self._restored: Restored | None = None
        """How the last restore from the log has ended."""
        self._published: dict[str, int | None] = {}
        """What was last published, by topic and channel."""
        self._passed = NONE_PASSED
        """What the last commit has noted; see ``commit_notes``."""
        self._staged: tuple[CommitBatch, dict[str, int | None]] | None = None
        self.in_doubt: CommitBatch | None = None
        """The last commit, while nobody knows whether it took effect."""
        self._closed = False

    @property
    def state(self) -> State:
        """Its state."""
        return self.lifecycle.state

    @property
    def task(self) -> Task:
        """The task, while it runs."""
        return self._running("be looked at").task

    @property
    def promises(self) -> Promises:
        """The watermarks that it has published, and what was emitted behind them."""
        return self._promises

    def restore(self) -> None:
        """Take all steps of restoring at once. Raises what ``step`` raises."""
        while self.state is not State.RUNNING:
            if not self.step():
                await_log(self._reader)

    def step(self) -> bool:
        """Take one step of restoring, also out of an unknown outcome or a rollback. After the last step the partition is RUNNING.

        Returns whether it made progress: if not, the log gives nothing at the moment.

        Raises:
            LifecycleError: It is at work already, or has ended.
            TailraceError: See ``Restore.steps``; the partition has then ended.
        """
        if self._restoring is None:
            rewinds = self.state is State.ROLLED_BACK and self._takes_records_again()
            self.lifecycle.on(Event.RESTORE_BEGUN)
            self._restoring = self._steps(rewinds=rewinds)
        try:
            return next(self._restoring)
        except StopIteration:
            self._restoring = None
            return True
        except Exception:
            self._restoring = None
            raise

    def _steps(self, *, rewinds: bool) -> Generator[bool, None, None]:
        with self._ending():
            if rewinds:
                found = self._rewound()
            else:
                self._give_up_writer()
                found = yield from Restore(
                    self.plan,
                    self.partition,
                    self._log,
                    self._reader,
                    self._store,
                    self._clock,
                    self.settings,
                    self._check_owned,
                ).steps()
                self._restored, self._writer, self._passed = found, found.writer, found.passed
                mine = transactional_id(self.plan.app, self.partition)
                self._published = {
                    name: mark for (name, by), mark in self._log.publications().items() if by == mine
                }
                self._promises.publish(self._published)  # they hold for those who come after a restart, too
            self._run_from(found)

    def _takes_records_again(self) -> bool:
        """Whether the writer can be used again after a rollback."""
        assert self._writer is not None
        try:
            self._writer.abort()
        except TailraceError:
            return False
        return True

    @property
    def committed_cut(self) -> bytes | None:
        """The last cut that is durable; None before the first commit."""
        data = self._store.cut
        return None if data is None else decode_store_cut(data).core

    @property
    def state_rows(self) -> int:
        """The number of rows of its state, as of the last commit."""
        return self._running("be looked at").contents.now.rows

    @property
    def state_bytes(self) -> int | None:
        """About how many bytes they take in its store; None if that does not tell it."""
        return getattr(self._store, "size_bytes", None)

    def _rewound(self) -> Restored:
        """The last commit, as the store has it."""
        before = self._restored
        assert before is not None
        core = self.committed_cut
        return before if core == before.cut else replace(before, cut=core, positions={}, stepped_over={})

    def _run_from(self, found: Restored) -> None:
        task = Task(
            self.plan,
            self.partition,
            self._store,
            found.cut,
            lineage=self._lineage,
            nonce=self._draw_nonce(),
            positions=found.positions,
            settings=replace(self.settings.task, promises=self._promises),
            drop=self.settings.drop,
            watch=self._watch,
        )
        check_kept(
            self._log,
            self.partition,
            task.waiting_from(),
            task.positions,
            "reading of the events that wait for their turn",
            f"--after-deleted does not help here. Rebuild the state (from {KEPT_ELSEWHERE}; or with --order stages --after-deleted, "
            "without those events), start from the result under another name (--as, --from-snapshot), and keep the topic for longer.",
        )
        refill(
            task,
            lambda name, start, stop: list(scan(self._log, name, self.partition, start, stop, whole=True)),
        )
        for name, offset in found.stepped_over.items():
            task.begin_at(name, offset)
        held = self._store.cut
        self._slices = Slices(
            task,
            self._log,
            self._reader,
            found.writer,
            self.settings,
            self._clock(),
            self._elapsed(),
            self._published,
            found.cut_headers,
            self._passed,
            StoreContents(self._store, Contents() if held is None else decode_store_cut(held).contents),
        )
        if not self.settings.bounded:
            self._slices.check_clock()
        self._promises.publish(self._slices.published.promised())
        self.lifecycle.on(Event.RESTORED)
        if self.restore_ms is None:
            self.restore_ms = self._elapsed() - self._made_ms
        batch, self.in_doubt = self.in_doubt, None
        if batch is not None and batch.cut == found.cut:
            self._is_durable(batch)

    def poll(self, max_records: int = 10_000) -> bool:
        """Take one slice of at most ``max_records`` records, and commit if it is time; whether there was anything to do.

        For a partition that commits alone. One whose last commit has an unknown outcome restores itself here. A caller that is no
        longer sure to own it calls ``close`` instead, since a take-over would fence the new owner.

        Raises:
            HandlerError, BadRecordError: The app stops on failures, and there was one. The partition has failed.
            FencedError: Another worker has taken over.
            LogUnavailableError: The log could not be read, and what could be done without was done. If the state is
                still RUNNING nothing is lost and it may be called again.
        """
        if self.state in (State.IN_DOUBT, State.ROLLED_BACK):
            self.restore()
            return True
        worked = self.take(max_records)
        trouble = self.trouble
        if self.commit_is_due:
            self.commit()
            worked = True
        if trouble is not None:
            raise trouble
        return worked

    def take(self, max_records: int) -> bool:
        """Take one slice, as ``poll`` does, without a commit. Look at ``trouble`` after it."""
        slices = self._running("take a slice")
        with self._ending():
            return slices.slice(self._clock(), self._elapsed(), max_records)

    @property
    def trouble(self) -> TailraceError | None:
        """Why the last slice could not read an input."""
        return self._running("be looked at").trouble

    @property
    def commit_is_due(self) -> bool:
        """Whether it is time for a commit."""
        return self._running("be looked at").commit_is_due()

    def commit(self) -> None:
        """Commit all that was taken since the last commit; if that is nothing, nothing happens. See ``commit_together``.

        Raises:
            FencedError: Another worker has taken over; nothing of this was committed.
            TailraceError: It was not committed, or it was and the store could not be written. The log knows, and the
                partition has failed.
        """
        self.lifecycle.require(State.RUNNING, "commit")
        commit_together((self,))

    # --- the steps of a commit, for ``commit_together``

    def stage(self) -> Part:
        """Append all that belongs to a commit to the open transaction. Returns the rest of the commit."""
        slices = self._running("commit")
        self.lifecycle.on(Event.COMMIT_BEGUN)
        with self._ending():
            batch = slices.stage()
            offsets = {TopicPartition(name, self.partition): at for name, at in batch.offsets.items()}
            watermarks = slices.published.wanted()
            self._staged = batch, watermarks
            return Part(slices.writer, offsets, watermarks)

    def complete(self, ends: Mapping[TopicPartition, int]) -> None:
        """The commit is durable, and ``ends`` there: write it to the store."""
        assert self._staged is not None
        assert self._slices is not None
        (batch, watermarks), self._staged = self._staged, None
        slices = self._slices
        try:
            with self._ending():
                position = ends[TopicPartition(self.plan.changelog_topic, self.partition)]
                contents = slices.contents.next
                cut = StoreCut(FORMAT, position, slices.now_ms, batch.cut, contents=contents)
                self._store.write(batch.rows | batch.index_rows, cut.encode())
                slices.committed(watermarks)
                self._promises.publish(watermarks)
                self._published |= watermarks
                self._passed = slices.passed.noted
                self.lifecycle.on(Event.COMMITTED)
        except Exception:  # the store could not be written, but the log has the commit
            self._is_durable(batch)
            raise
        self._is_durable(batch)

    def _is_durable(self, batch: CommitBatch) -> None:
        if self._on_committed is not None:
            self._on_committed(batch)

    def doubt(self) -> None:
        """Nobody knows whether its commit took effect."""
        self.in_doubt = None if self._staged is None else self._staged[0]
        self.lifecycle.on(Event.OUTCOME_UNKNOWN)
        self._drop()

    def not_committed(self, error: Exception) -> None:
        """The commit failed. A partition that commits alone has failed; otherwise it is rolled back, if it has lost anything."""
        if self.state is State.COMMITTING and self.shared is None:
            with suppress(type(error)), self._ending():
                raise error
        elif self.state is State.COMMITTING:
            self._roll_back()
        else:
            self.notice_loss()

    def notice_loss(self) -> bool:
        """Roll it back, and return True, if its uncommitted work was lost with the transaction that it shares."""
        is_lost = self.state is State.RUNNING and self._writer is not None and self._writer.lost
        if is_lost:
            self._roll_back()
        return is_lost

    def _roll_back(self) -> None:
        self.lifecycle.on(Event.WORK_LOST)
        self._forget()

    @property
    def shared(self) -> Transaction | None:
        """The transaction that it shares with other partitions, if any."""
        return None if self._writer is None else self._writer.shared

    @property
    def dirty(self) -> bool:
        """Whether there is something to commit."""
        return self._running("be looked at").dirty

    def end_input(self, phase: int) -> None:
        """Go to a phase of the end of input (see ``progress``), after the next slices have taken all records that are there.

        All partitions must have committed all consequences of the phase before.
        """
        self._running("end").end_input(phase)

    def rest_ms(self) -> int | None:
        """Time until something becomes due without a record (a commit, idleness, a timer); None if nothing will."""
        return self._running("rest").rest_ms(self._clock(), self._elapsed())

    @property
    def elapsed_ms(self) -> int:
        """The time of the last slice by the clock that measures durations."""
        return self._running("be looked at").elapsed_ms

    def revoke(self) -> None:
        """Give the partition back: commit, if it is running, and close it. A partition that has ended is only closed.
        Raises TailraceError: see ``commit``. The partition is closed anyway.
        """
        try:
            if self.state is State.RUNNING and not self.notice_loss():
                self.commit()
        finally:
            self.close()

    def close(self) -> None:
        """Release all resources and drop uncommitted work. May be called in any state, and more than once."""
        if self._closed:
            return
        self._closed = True
        if self._restoring is not None:
            self._restoring.close()
        if not self.lifecycle.ended and self.state is not State.COMMITTING:
            self.lifecycle.on(Event.LEFT)
        try:
            self._drop()
        finally:
            if self._own_reader:
                self._reader.close()
            self._store.close()

    def _running(self, wanted: str) -> Slices:
        self.lifecycle.require(State.RUNNING, wanted)
        assert self._slices is not None
        return self._slices

    @contextmanager
    def _ending(self) -> Generator[None, None, None]:
        """What fails in here ends the partition."""
        try:
            yield
        except Exception as error:
            self.error = error
            fenced = isinstance(error, FencedError)
            self.lifecycle.on(Event.FENCING_SEEN if fenced else Event.FAILURE)
            self._drop()
            raise

    def _drop(self) -> None:
        """Forget what is in memory, and abort what it belongs to."""
        self._forget()
        self._give_up_writer()

    def _forget(self) -> None:
        self._slices = self._staged = None
        for one in self.plan.inputs:
            self._reader.forget(one.name, self.partition)

    def _give_up_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except TailraceError:
                # Fenced or out of reach: the next take-over of the id ends the transaction.
                pass
