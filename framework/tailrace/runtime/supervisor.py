"""The supervisor: runs a service in several processes, restarts those that die, and coordinates their end.

Process i of n owns the partitions p with ``p % n == i``. The parent handles no events. It asks each child for its status, adds
the answers up, forwards requests to stop, and fails with the first ``TailraceError`` that a child reports. With ``--http`` it answers for all:
each child sends what it has measured with its status, and at once that a handler is stuck.

A child that dies without reporting an error (a kill, a crash, an unexpected exception) is restarted, after a pause that grows.
A bounded run fails instead if a child dies at five starts in a row before it has answered. One that reports a
``TailraceError`` would fail the same way again, so all children leave. If the parent dies, its children see that their pipe is
closed; they commit and leave.

No child reads a record before all have started their tasks and made the first commits of these. Inputs that were idle before
the stop count again, and the other tasks must learn that first. A child that is restarted later does not block the others.

A bounded run ends when all children are done, as they send messages to each other. The parent finds this by asking twice
(Mattern's four counters, with the number of turns that had work as the counts). It asks in rounds; each answer comes from a
turn that began after the question. If all children were quiet in two rounds, and none had work in between, then no message
is in flight.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection
from threading import Lock
from typing import Literal, TypeAlias

from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TailraceError, UsageError, WorkerLostError
from tailrace.history.reading.generations import located
from tailrace.log.interface import StoredLog
from tailrace.log.opening import open_log
from tailrace.processes.app_loading import find_app
from tailrace.processes.child_process import ChildProcess, Conduct, Pipe
from tailrace.processes.signals import stop_signals
from tailrace.runtime.companions import Companion
from tailrace.runtime.dead_letter_monitor import Kind
from tailrace.runtime.handler_watch import Stuck, margin_of
from tailrace.runtime.host import Host
from tailrace.runtime.housekeeping import Housekeeping
from tailrace.runtime.measuring import Family, Published, Seen, lasting, merged
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare
from tailrace.runtime.progress import STARTING, Status, last_phase, total
from tailrace.runtime.reports import Reports
from tailrace.runtime.snapshot_start import with_snapshot_settled
from tailrace.runtime.upgrading import await_upgrade, noting_failures

_log = logging.getLogger("tailrace.supervisor")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_STEADY_S = 10.0
"""A child that runs for this long has its pause reset."""
_UNANSWERED = 5
"""A bounded run fails if a child dies so often before it has answered."""
_SILENT_S = 15.0
_ASK_S, _ASK_BOUNDED_S = 1.0, 0.02

_Order: TypeAlias = Literal["status", "stop"] | int
_Answer: TypeAlias = Status | TailraceError | Published | tuple[Stuck | None]
"""The last one: the handler that is stuck in the child from now on."""


# --- the child


class Link(Companion):
    """The child's end of the pipe: answers questions, and passes orders to the worker. ``phase`` is the one to begin with."""

    name = "the link to the parent"
    essential = True

    def __init__(self, pipe: Pipe, phase: int) -> None:
        self._pipe = pipe
        self._phase = phase
        self._asked = False
        self._sent: Published | None = None
        self._sending = Lock()

    def begin(self) -> None:
        """See ``Companion.begin``."""
        assert self.host is not None
        self.host.worker.phase = self._phase
        self.host.watch.on_stuck = self._tell_stuck

    def _tell_stuck(self, stuck: Stuck | None) -> None:
        """Called in another thread: the worker's is in the handler."""
        with suppress(OSError):
            self._send((stuck,))

    def _send(self, answer: _Answer) -> None:
        with self._sending:
            self._pipe.send(answer)

    def look(self) -> None:
        """Answer and pass on. A question is answered after the next turn, which then began after the question."""
        assert self.host is not None
        worker = self.host.worker
        try:
            if self._asked:
                self._asked = False
                self._send(worker.status())
                measuring = self.host.measuring
                if measuring is not None and measuring.published is not self._sent:
                    self._sent = measuring.published
                    self._send(self._sent)
            while self._pipe.poll():
                order: _Order = self._pipe.recv()
                if order == "status":
                    self._asked = True
                elif order == "stop":
                    worker.stop()
                else:
                    while worker.phase < order:
                        worker.advance()
        except (EOFError, OSError):
            _log.warning("the parent of this worker is gone: it leaves")
            worker.stop()


def work(pipe: Pipe, options: ServiceOptions, index: int, phase: int) -> None:
    """The main function of a child process."""
    app = find_app(options.app)
    _check_declared(app, options)
    plan = app.plan()
    share = range(index, plan.partitions, options.workers)
    Host(options, plan, [Link(pipe, phase)], share).run()


def _check_declared(app: App, options: ServiceOptions) -> None:
    """Check that this process has imported the same app that its parent runs.
    Raises UsageError: the script declares something that its import does not, or the other way round.
    """
    found = declared_by(app)
    if options.declared is not None and found != options.declared:
        what = sorted(found ^ options.declared)
        raise UsageError(
            f"a worker process has imported {options.app} without {what[0]}, or with it where its parent has none",
            hint='Declare everything at the top of the module, not under if __name__ == "__main__".',
        )


def declared_by(app: App) -> frozenset[str]:
    """Topics, streams, actors and functions of an app, by name."""
    kinds = ("topic", app.topics), ("stream", app.streams), ("actor", app.actors), ("function", app.functions)
    return frozenset(f"the {kind} {name!r}" for kind, names in kinds for name in list(names))


# --- the parent


@dataclass(slots=True)
class _Child:
    """The state of one worker process, across its restarts."""

    index: int
    process: ChildProcess | None = None
    begun_s: float = 0.0
    pause_s: float = 0.0
    again_at_s: float = 0.0
    asked_at_s: float | None = None
    silent: bool = False
    status: Status | None = None
    published: Published | None = None
    stuck: Stuck | None = None
    fresh: bool = False
    """Whether ``status`` belongs to the current round of questions."""
    failed: TailraceError | None = None
    unanswered: int = 0
    """How often in a row it has died before it answered."""


class Phases:
    """The phase that all workers are in, by their answers; see the head of this file. ``last`` is that of a bounded run.

    A service that is not bounded has two: it starts, and it reads.
    """

    def __init__(self, last: int | None) -> None:
        self.current = STARTING
        self.last = last
        self._before: list[tuple[int, int]] | None = None
        """Process id and number of turns of each worker, if all were quiet in the last round of questions; else None."""

    def after(self, answers: Sequence[tuple[int, Status]]) -> int:
        """The phase after a round of answers. ``answers`` has the process id and the status of each worker."""
        before, self._before = self._before, None
        if self.current == STARTING:
            self.current += all(status.started for _, status in answers)
        elif self.last is not None and all(one.quiet and one.phase == self.current for _, one in answers):
            turns = [(pid, status.turns) for pid, status in answers]
            if turns == before:
                self.current += 1
            else:
                self._before = turns
        return self.current


class Supervisor:
    """The parent of a service's processes.

    Raises, from ``run``:
        TailraceError: The first error that a child has reported.
        WorkerLostError: A child did not leave cleanly when it was asked to; of a bounded run, one cannot start.
    """

    def __init__(self, options: ServiceOptions, plan: Plan) -> None:
        self._options = options
        self._plan = plan
        self._children = [_Child(index) for index in range(options.workers)]
        last = last_phase(plan, ends_input=options.end_of_input) if options.is_bounded else None
        self._phases = Phases(last)
        self._stopping_s: float | None = None
        grace_s = options.grace_ms / 1_000
        self._leaving_s = grace_s - margin_of(grace_s) / 2
        """Then a child is killed. Before that it ends itself, unless it can run no Python code."""
        self._asked_s = 0.0
        self._failure: TailraceError | None = None
        self._lasting: list[Family] = []
        self._seeing = Lock()
        """What has ended must not count twice, nor fail to count, for a moment."""

    def seen(self) -> tuple[Mapping[str, Seen | None], Sequence[Family]]:
        """The workers, by number, and what those that have ended have counted. For the thread of the answers."""
        found: dict[str, Seen | None] = {}
        with self._seeing:
            for child in self._children:
                process, published = child.process, child.published
                known = process and published and Seen(process.pid, published, child.stuck)
                found[str(child.index)] = known or None
            return found, self._lasting

    def run(self) -> Counter[Kind]:
        """Supervise until all children have left. Returns the number of new dead letters of each kind."""
        given = self._options
        with closing(open_log(given.log, given.log_options, create=given.create_topics)) as log:
            given = await_upgrade(given, self._plan, log)
            self._plan = located(self._plan, log)
            with noting_failures(given, self._plan, log):
                prepare(log, given, self._plan)
                settled = with_snapshot_settled(given, self._plan, log)
            self._options = replace(settled, declared=declared_by(find_app(given.app)))
            letters = self._supervise(log)
        if self._failure is not None:
            raise self._failure
        _log.info("left", extra={"app": self._plan.app, "workers": len(self._children)})
        return letters

    def _supervise(self, log: StoredLog) -> Counter[Kind]:
        reports = Reports(self._plan.app, log)
        asked_s: float | None = None

        def stop() -> None:
            nonlocal asked_s
            if asked_s is None:
                asked_s = time.monotonic()
                self._terminate_all()  # at once: their grace period begins with this signal, and one in a handler reads no order

        with ExitStack() as answering, stop_signals(stop, self._kill_all):
            if self._options.http is not None:
                from tailrace.runtime.http_answers import HttpAnswers  # noqa: PLC0415  # an extra's packages

                answers = HttpAnswers(self._options.http, self.seen, self._plan)
                answers.begin()
                answering.callback(answers.close)
            for child in self._children:
                self._start(child)
            while any(one.process is not None or self._due_again(one) for one in self._children):
                self._wait()
                for child in self._children:
                    self._look(child)
                if asked_s is not None and self._stopping_s is None:
                    self._stop(asked_s)
                    self._terminate_all()  # those that were being started when the signal came
                now_s = time.monotonic()
                if self._stopping_s is None:
                    self._ask(now_s)
                elif now_s - self._stopping_s > self._leaving_s:
                    self._end_the_slow()
                reports.look(self._status)
            letters = reports.finish()
            if self._options.is_bounded and self._failure is None:
                keeping = Housekeeping(log, self._options.log_options, self._options.log_format)
                keeping.finish(lambda: asked_s is not None)
        return letters

    def _status(self) -> Status | None:
        """That of all children; None until all have answered, and from the stop on."""
        known = [one.status for one in self._children if one.status is not None]
        return total(known) if len(known) == len(self._children) and self._stopping_s is None else None

    def _start(self, child: _Child) -> None:
        child.begun_s = time.monotonic()
        try:
            process = ChildProcess(
                "a worker",
                work,
                self._options,
                child.index,
                self._phases.current,
                conduct=Conduct(log_format=self._options.log_format, leaves_by_itself=True),
            )
        except WorkerLostError as error:
            pause_s = self._pause(child)
            _log.warning("%s; again in %.1f s", error.what, pause_s)
            return
        child.process = process
        child.asked_at_s, child.silent, child.status, child.fresh = None, False, None, False
        child.published = child.stuck = None
        _log.info("a worker is started", extra={"worker": child.index, "worker_process": process.pid})

    def _look(self, child: _Child) -> None:
        """Read the messages of a child, and notice its end; start it if its restart is due."""
        if child.process is None:
            if self._due_again(child) and time.monotonic() >= child.again_at_s:
                self._start(child)
            return
        alive = child.process.is_alive  # checked first, so that its last messages are still read
        try:
            while child.process.pipe.poll():
                answer: _Answer = child.process.pipe.recv()
                if isinstance(answer, Status):
                    child.asked_at_s, child.silent = None, False
                    child.status, child.fresh = answer, True
                elif isinstance(answer, Published):
                    child.published = answer
                elif isinstance(answer, TailraceError):
                    child.failed = answer
                else:
                    (child.stuck,) = answer
        except (EOFError, OSError):
            pass
        if not alive:
            self._ended(child, child.process)

    def _ended(self, child: _Child, process: ChildProcess) -> None:
        with self._seeing:
            if child.published is not None:
                self._lasting = merged([*self._lasting, *lasting(child.published.families)])
            child.process = child.published = child.stuck = None
        process.close()
        said = {"worker": child.index, "worker_process": process.pid}
        if child.failed is not None:
            self._failure = self._failure or child.failed
            self._stop()
        elif self._stopping_s is None:
            pause_s = self._pause(child)
            child.unanswered = child.unanswered + 1 if child.status is None else 0
            if self._options.is_bounded and child.unanswered == _UNANSWERED:
                self._failure = WorkerLostError(
                    f"worker {child.index} {process.how_it_ended} at each of {_UNANSWERED} starts",
                    hint="See its messages above.",
                )
                self._stop()
                return
            _log.warning(
                "a worker %s; it is started again in %.1f s", process.how_it_ended, pause_s, extra=said
            )
        elif process.exit_code:
            _log.warning("a worker %s while leaving", process.how_it_ended, extra=said)
            self._failure = self._failure or WorkerLostError(
                f"worker {child.index} {process.how_it_ended} while it was leaving",
                hint="The next start repeats the work that it had not committed.",
            )

    def _pause(self, child: _Child) -> float:
        """Set and return the pause before a restart."""
        lived_s = time.monotonic() - child.begun_s
        if lived_s > _STEADY_S or not child.pause_s:
            child.pause_s = _FIRST_PAUSE_S
        else:
            child.pause_s = min(2 * child.pause_s, _LONGEST_PAUSE_S)
        child.again_at_s = time.monotonic() + child.pause_s
        return child.pause_s

    def _due_again(self, child: _Child) -> bool:
        return child.process is None and self._stopping_s is None

    def _tell(self, child: _Child, order: _Order) -> None:
        if child.process is not None:
            child.process.send(order)

    @property
    def _processes(self) -> list[ChildProcess]:
        return [one.process for one in self._children if one.process is not None]

    def _wait(self) -> None:
        """Wait until a child sends a message or dies, or the next question is due: then it is seen, too, if a signal has arrived."""
        now_s = time.monotonic()
        pauses_s = [max(0.0, one.again_at_s - now_s) for one in self._children if self._due_again(one)]
        if self._stopping_s is None:
            pauses_s.append(self._ask_every_s)
        else:
            pauses_s.append(min(_ASK_S, max(0.05, self._stopping_s + self._leaving_s - now_s)))
        waited = [end for one in self._processes for end in (one.pipe, one.sentinel)]
        connection.wait(waited, min(pauses_s))

    def _ask(self, now_s: float) -> None:
        """Evaluate a round of questions that all have answered; begin the next when it is due."""
        children = self._children
        if all(one.fresh for one in children):
            self._evaluate()
        for child in children:
            if child.asked_at_s is not None and now_s - child.asked_at_s > _SILENT_S and not child.silent:
                child.silent = True
                _log.warning(
                    "a worker has not answered for %.0f s: it is restoring, stopped, or in a long handler",
                    _SILENT_S,
                    extra={"worker": child.index, "worker_process": child.process and child.process.pid},
                )
        waiting = any(one.asked_at_s is not None or one.process is None for one in children)
        if waiting or now_s - self._asked_s < self._ask_every_s:
            return
        self._asked_s = now_s
        for child in children:
            child.fresh, child.asked_at_s = False, now_s
            self._tell(child, "status")

    @property
    def _ask_every_s(self) -> float:
        return _ASK_BOUNDED_S if self._options.is_bounded or self._phases.current == STARTING else _ASK_S

    def _evaluate(self) -> None:
        """All children have answered: begin the next phase, or stop, if this one is over."""
        answers = [(one.process.pid, one.status) for one in self._children if one.process and one.status]
        for child in self._children:
            child.fresh = False
        before = self._phases.current
        if len(answers) < len(self._children) or self._phases.after(answers) == before:
            return
        if before == self._phases.last:
            self._stop()
            return
        for child in self._children:
            self._tell(child, self._phases.current)

    def _stop(self, since_s: float | None = None) -> None:
        if self._stopping_s is None:
            self._stopping_s = time.monotonic() if since_s is None else since_s
            for child in self._children:
                self._tell(child, "stop")

    def _end_the_slow(self) -> None:
        for child in self._children:
            if child.process is not None:
                _log.warning(
                    "a worker has not left for %.0f s: it is ended",
                    self._leaving_s,
                    extra={"worker": child.index, "worker_process": child.process.pid},
                )
                child.process.kill()

    def _terminate_all(self) -> None:
        """Send SIGTERM to all. May be called from a signal handler."""
        for one in self._processes:
            one.terminate()

    def _kill_all(self) -> None:
        for one in self._processes:
            one.kill()
