"""One round of the soak: services at work on one log, struck by faults that a seed draws, brought to their end, checked.

The fault list is ``FAULTS``. The harness is also the operator, who starts again what has ended, whatever it was; a service
may only end by itself for a reason that the operator has given it: its tasks were not yet let go, or the disk
was full. Anything else it says ends the round.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import SHARED_MEMORY
from tailrace.log.embedded.holders import appenders
from tailrace.runtime.preparing import prepare_log
from tests.runtime.processes import PATIENCE_S, UNLIMITED, Process, limit_files, wait_until
from tests.soak import checks, feed
from tests.soak.apps import PARTITIONS, first_app, second_app
from tests.soak.disk import Disk
from tests.soak.rounds import Report, SoakRound

_STOPPED_S = 1.0
_OWNED, _IN_USE = "is owned by another process", "in use"
_FULL = ("too large", "No space left", "full", "size")
_EVENTS_PER_FAULT = 1_500
_FED_PER_SECOND = 600
_SLOW_MS = {"plain": 2.0, "rich": 0.5}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round is to be."""

    seed: int
    rich: bool
    faults: int
    workers: tuple[int, int] = (2, 2)
    """Processes of each service."""
    pause_s: float = 0.6
    """On average, between two faults."""
    disk: Disk | None = None


class Service:
    """One of the services, started again and again."""

    def __init__(self, name: str, soak: Soak, workers: int) -> None:
        self.name = name
        self.soak = soak
        self.workers = workers
        self.state = soak.folder / "state-0"
        self.process: Process | None = None
        self.was_full = False

    def start(self, *, slow: bool = True, end_of_input: bool = False) -> Process:
        soak = self.soak
        arguments: list[object] = ["--log", soak.log, "--state", self.state, "--workers", self.workers]
        interval = soak.random.choice(("20ms", "50ms", "50ms", "300ms"))
        environment = {"SOAK_RICH": "1" if soak.plan.rich else ""}
        if slow:
            environment["SOAK_SLOW_MS"] = str(_SLOW_MS[soak.report.variant])
        soak.report.starts += 1
        self.process = soak.started(
            f"{self.name}-{soak.report.starts}",
            "tailrace", "run", f"tests.soak.apps:{self.name}", *arguments,
            "--commit-interval", interval,
            *(["--end-of-input", "--allow-dead-letters"] if end_of_input else []),
            environment=environment,
        )  # fmt: skip
        self.was_full = False
        return self.process

    def keep(self) -> Process:
        """The process; started again if it has ended."""
        process = self.process
        if process is not None and process.code() is None:
            return process
        if process is not None:
            self.judge(process, was_full=self.was_full)
            self.soak.note(f"{self.name} is started again")
        return self.start()

    def judge(self, process: Process, *, was_full: bool) -> None:
        """See that a service that ended by itself had a reason."""
        words = "".join(
            line
            for line in process.text().splitlines(True)
            if not line.startswith("{") or '"exit_code":' in line
        )
        allowed = (_OWNED, _IN_USE, *(_FULL if was_full else ()))
        code = process.ended()
        assert code == 1, f"{self.name} ended with {code}: {words}"
        if was_full and not process.text():
            return  # what it says goes to a file, which was limited, too
        assert any(one in words for one in allowed), f"{self.name} ended: {words}"

    def running(self) -> bool:
        process = self.process
        return process is not None and process.text().count("a partition runs") >= PARTITIONS


class Soak(SoakRound):
    """A round; ``run`` is all of it."""

    def __init__(self, folder: Path, plan: Plan, said: Path | None = None) -> None:
        super().__init__(folder, plan.seed, "rich" if plan.rich else "plain", "soak", said)
        self.plan = plan
        self.log = folder / "log"
        self._states = 1
        self.services = [
            Service(name, self, workers)
            for name, workers in zip(("first", "second"), plan.workers, strict=True)
        ]
        self._feeder: Process | None = None

    def run(self) -> Report:
        """Do it all. Raises whatever went wrong."""
        with self.told():
            self._prepare()
            for _ in range(self.plan.faults):
                time.sleep(self.random.expovariate(1 / self.plan.pause_s))
                self._strike()
            self._end()
            self._check()
        return self.report

    # --- begin and end

    def _prepare(self) -> None:
        """Make the log, with some of the inputs, or all; the second service begins when it knows all that it follows."""
        plan, log = self.plan, EmbeddedLog(self.log)
        try:
            for app in (first_app(rich=plan.rich), second_app()):
                prepare_log(log, app.plan(), create_declared=True)
            self._append(log, 500 if plan.rich else _EVENTS_PER_FAULT * plan.faults)
            first, second = self.services
            first.start()
            tape = first_app(rich=plan.rich).plan().tape_topic

            def begun() -> bool:
                first.keep()
                return all(log.end_offset(tape, number) for number in range(PARTITIONS))

            wait_until(begun, "every task of the first service has committed")
        finally:
            log.close()
        second.start()
        self._keep_feeding()

    def _append(self, log: EmbeddedLog, count: int) -> None:
        writer = log.writer("feed")
        rest: list[Output] = feed.outputs(self.plan.seed, 0, count, rich=self.plan.rich)
        writer.append(rest)
        writer.commit({feed.PLACE: count}, feed.GROUP)

    def _keep_feeding(self) -> None:
        if not self.plan.rich:
            return
        if self._feeder is None or self._feeder.code() is not None:
            self._feeder = self.started(
                f"feeder-{len(self.processes)}",
                "tests.soak.feed", self.log, self.plan.seed, "rich", _FED_PER_SECOND,
            )  # fmt: skip

    def _end(self) -> None:
        """No more faults: everything is read and handled, by one service after the other."""
        if self._feeder is not None:
            self._feeder.kill()
        for service in self.services:
            self.note(f"{service.name} is to leave")
            assert service.process is not None
            if service.process.code() is None:
                self._terminate(service)
        for process in self.processes:
            process.ended()  # workers whose parent was killed leave by themselves, and own their tasks until then
        for service in self.services:
            self.note(f"{service.name} runs to the end")
            process = service.start(slow=False, end_of_input=True)
            assert process.ended() == 0, f"{service.name} did not come to its end: {process.text()}"

    def _check(self) -> None:
        self.check_what_was_said()
        clean = None if self.plan.rich else self._clean_run()
        self.note("the checks begin")
        states = {one.name: one.state for one in self.services}
        self.report.figures = checks.check(self.log, states, self.plan.seed, rich=self.plan.rich, clean=clean)
        self.note("the checks end")

    def _clean_run(self) -> Path:
        """The same from the beginning, in one process for each service, without faults."""
        self.note("the clean run begins")
        harmed, self.log = self.log, self.folder / "clean-log"
        log = EmbeddedLog(self.log)
        for app in (first_app(rich=False), second_app()):
            prepare_log(log, app.plan(), create_declared=True)
        self._append(log, _EVENTS_PER_FAULT * self.plan.faults)
        log.close()
        for name in ("first", "second"):
            service = Service(name, self, 1)
            service.state = self.folder / "clean-state"
            process = service.start(slow=False, end_of_input=True)
            assert process.ended() == 0, process.text()
        clean, self.log = self.log, harmed
        return clean

    # --- faults

    def _strike(self) -> None:
        for service in self.services:
            service.keep()
        self._keep_feeding()
        names = [
            name
            for name, (odds, _) in FAULTS.items()
            for _ in range(odds)
            if (self.plan.rich or not name.startswith("feeder"))
            and (self.plan.disk is not None or name != "disk full")
        ]
        name = self.random.choice(names)
        service = self.random.choice(self.services)
        self.report.faults[name] += 1
        self.note(f"{name}: {'' if name in ('disk full', *_OF_FEEDER) else service.name}")
        FAULTS[name][1](self, service)

    def kill_worker(self, service: Service) -> None:
        process = service.keep()
        victim = self.random.choice(process.workers() or [process.pid])
        if victim == process.pid:  # it works itself
            self.kill_parent(service)
            return
        process.signal(signal.SIGKILL, victim)
        if self.random.random() < 0.5 and process.code() is None:
            return
        self._let(service, 0.3)

    def kill_parent(self, service: Service) -> None:
        service.keep().signal(signal.SIGKILL)
        self._restarted(service)

    def kill_all(self, service: Service) -> None:
        process = service.keep()
        process.signal(signal.SIGKILL, *process.members())
        self._restarted(service)

    def kill_while_starting(self, service: Service) -> None:
        service.keep().kill()
        process = service.start()
        time.sleep(self.random.uniform(0.2, 1.2))
        process.kill()
        service.start()

    def terminate(self, service: Service) -> None:
        service.keep()
        self._terminate(service)
        service.start()

    def stop_worker(self, service: Service) -> None:
        """It keeps its tasks, and works again after SIGCONT."""
        process = service.keep()
        stopped = [self.random.choice(process.workers() or [process.pid])]
        self._stop(process, stopped)
        time.sleep(_STOPPED_S * self.random.choice((0.2, 1.3)))
        process.signal(signal.SIGCONT, *stopped)

    def replace_stopped(self, service: Service) -> None:
        """All of a service sleeps. Another one with a state of its own is refused, until the first has been ended."""
        sleeping = service.keep()
        members = sleeping.members()
        self._stop(sleeping, members)
        service.state = self._other_state(service)
        other = service.start()
        wait_until(
            lambda: other.code() is not None or service.running(), "it ends, or the first had no tasks yet"
        )
        sleeping.signal(signal.SIGKILL, *members)
        sleeping.ended()
        service.keep()

    def _stop(self, process: Process, members: list[int]) -> None:
        """Stop processes at a moment at which they do not append: else nobody could append until they wake."""
        while True:
            process.signal(signal.SIGSTOP, *members)
            if not any(one.pid in members for one in appenders(self.log / SHARED_MEMORY)):
                return
            process.signal(signal.SIGCONT, *members)

    def lose_state(self, service: Service) -> None:
        """The state of a task, or of all, is gone, or that of another time or place."""
        service.keep().kill()
        service.was_full = False
        chance = self.random.random()
        number = self.random.randrange(PARTITIONS)
        if chance < 0.4:
            shutil.rmtree(service.state / service.name / str(number), ignore_errors=True)
        elif chance < 0.7:
            shutil.rmtree(service.state / service.name, ignore_errors=True)
        else:
            service.state = self._other_state(service)
        service.start()

    def limit_files(self, service: Service) -> None:
        """What a worker writes past some size is refused, under log and state alike, as by a full disk."""
        process = service.keep()
        limited = process.workers()
        service.was_full = True
        for pid in limited:
            limit_files(pid, self.random.choice((0, 1_000, 200_000)))
        time.sleep(self.random.uniform(0.1, 0.8))
        for pid in limited:
            limit_files(pid, UNLIMITED)

    def fill_disk(self, _service: Service) -> None:
        """Log and state share a disk; the harness and the services feel it alike."""
        assert self.plan.disk is not None
        for service in self.services:
            service.was_full = True
        self.plan.disk.fill()
        try:
            time.sleep(self.random.uniform(0.1, 1.0))
        finally:
            self.plan.disk.relieve()

    def kill_feeder(self, _service: Service) -> None:
        assert self._feeder is not None
        self._feeder.kill()

    def stop_feeder(self, _service: Service) -> None:
        assert self._feeder is not None
        self._feeder.signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.1, 1.0))
        self._feeder.signal(signal.SIGCONT)

    def _terminate(self, service: Service) -> None:
        process = service.process
        assert process is not None
        process.signal(signal.SIGTERM)
        code = process.ended()
        if code:
            # It was about to end for a reason of its own.
            words = process.text()
            assert code in (1, -signal.SIGTERM), words
            if code == 1:
                lost = "while it was leaving" in words
                assert lost or service.was_full or _OWNED in words, words

    def _restarted(self, service: Service) -> None:
        """Started again, at once or when all of it has ended: its workers leave as they see that the parent is gone."""
        old = service.process
        if old is not None and self.random.random() < 0.5:
            old.ended()
        self._started_until_it_runs(service) if self.random.random() < 0.3 else service.start()

    def _started_until_it_runs(self, service: Service) -> None:
        service.start()
        deadline = time.monotonic() + PATIENCE_S
        while not service.running():
            assert time.monotonic() < deadline, f"{service.name} does not start"
            service.keep()
            time.sleep(0.05)

    def _other_state(self, service: Service) -> Path:
        """A folder that is new, or was in use before."""
        if self._states > 1 and self.random.random() < 0.5:
            other = self.folder / f"state-{self.random.randrange(self._states)}"
            if other != service.state:
                return other
        self._states += 1
        return self.folder / f"state-{self._states - 1}"

    def _let(self, service: Service, seconds: float) -> None:
        time.sleep(seconds)
        service.keep()


_OF_FEEDER = ("feeder killed", "feeder stopped")

FAULTS: dict[str, tuple[int, Callable[[Soak, Service], None]]] = {
    "kill -9 of a worker": (3, Soak.kill_worker),
    "kill -9 of the parent": (2, Soak.kill_parent),
    "kill -9 of all": (3, Soak.kill_all),
    "kill -9 while starting": (2, Soak.kill_while_starting),
    "SIGTERM and restart": (3, Soak.terminate),
    "SIGSTOP and wake": (3, Soak.stop_worker),
    "SIGSTOP, ended, replaced": (3, Soak.replace_stopped),
    "lost state": (3, Soak.lose_state),
    "no room for files": (3, Soak.limit_files),
    "disk full": (4, Soak.fill_disk),
    "feeder killed": (1, Soak.kill_feeder),
    "feeder stopped": (1, Soak.stop_feeder),
}
"""Each with its odds."""
