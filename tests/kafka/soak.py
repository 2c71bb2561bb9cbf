"""Exactly once on a real broker: the two chained services of the soak, each in several processes, struck by faults.

    python -m tests.kafka.soak --minutes 30 [--seed 0]

A round feeds events that follow from its seed, runs both services, and strikes: processes are killed, terminated, stopped past the
timeout of their session so that they wake as zombies, started while others run, and lose their state; the broker is killed and
stopped. Then everything is brought to its end and checked with what checks a round on the embedded log: the outputs against an
oracle in plain Python, their numbers for gaps and repeats, and state, outputs and changelog against a replay, byte for byte.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tailrace.log.kafka import KafkaLog
from tailrace.runtime.service import prepare_log
from tests.kafka.broker.cluster import Cluster
from tests.soak import checks, feed
from tests.soak.apps import PARTITIONS, first_app, second_app
from tests.soak.processes import Process, wait_until

SESSION_S = 6.0
"""The least that a broker allows by default."""
EVENTS_PER_FAULT = 1_000
_FED_PER_SECOND = 400
_LEFT = (0, -signal.SIGTERM)
"""Exit codes of a process that was to leave: it may have been told so before it could listen."""
_SLOW_MS = {False: 2.0, True: 0.5}


@dataclass(slots=True)
class Report:
    """What a round has done, and found to be right."""

    seed: int
    rich: bool
    faults: Counter[str] = field(default_factory=Counter[str])
    starts: int = 0
    seconds: float = 0.0
    figures: checks.Figures = field(default_factory=lambda: checks.Figures(0, 0, 0, 0))


class Member:
    """One of the processes of a service, with a state folder of its own, started again and again."""

    def __init__(self, service: str, number: int, round_: Round) -> None:
        self.service = service
        self.round = round_
        self.state = round_.folder / f"state-{service}-{number}"
        self.process: Process | None = None

    def start(self, *, slow: bool = True, until_end: bool = False) -> Process:
        made = self.round
        made.report.starts += 1
        environment = {
            "SOAK_RICH": "1" if made.rich else "",
            "TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": str(int(SESSION_S * 1_000)),
            **({"SOAK_SLOW_MS": str(_SLOW_MS[made.rich])} if slow else {}),
        }
        self.process = made.started(
            f"{self.service}-{made.report.starts}",
            "tailrace", "run", f"tests.soak.apps:{self.service}", "--log", made.url, "--state", self.state,
            "--commit-interval", made.random.choice(("50ms", "100ms", "300ms")),
            *(["--until-end", "--allow-dead-letters"] if until_end else []),
            environment=environment,
        )  # fmt: skip
        return self.process

    def keep(self) -> Process:
        """The process; started again if it was killed."""
        if self.process is None:
            return self.start()
        code = self.process.code()
        if code is None:
            return self.process
        assert code in (-signal.SIGKILL, 0), (
            f"{self.service} ended by itself with {code}: {self.process.text()[-3_000:]}"
        )
        return self.start()


class Round:
    """A round; ``run`` is all of it."""

    def __init__(
        self, folder: Path, cluster: Cluster, seed: int, faults: int, *, rich: bool, members: int = 2
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self.rich = rich
        self.url = f"kafka://{cluster.bootstrap}/round-{seed}-{'rich' if rich else 'plain'}."
        self.random = Random(f"kafka {seed}")
        self.report = Report(seed, rich)
        self.trace: list[str] = []
        self._seed = seed
        self._faults = faults
        self._processes: list[Process] = []
        self._begun_s = time.monotonic()
        (folder / "said").mkdir(parents=True, exist_ok=True)
        self.members = [
            Member(service, number, self) for service in ("first", "second") for number in range(members)
        ]
        self._feeder: Process | None = None

    def run(self) -> Report:
        """Do it all. Raises whatever went wrong, with the seed, what was done, and what the processes have said last."""
        try:
            self._prepare()
            for _ in range(self._faults):
                time.sleep(self.random.expovariate(1.0))
                self._strike()
            self._end()
            self.report.figures = checks.check(
                self.url, {one.service: one.state for one in self.members[::2]}, self._seed, rich=self.rich
            )
        except BaseException as error:
            last = "\n".join(
                f"--- {one.said.name}, {one.code()}\n{one.text()[-2_000:]}" for one in self._processes[-6:]
            )
            error.add_note(
                f"seed {self._seed}, rich {self.rich}\n  " + "\n  ".join(self.trace[-80:]) + "\n" + last
            )
            raise
        finally:
            for process in self._processes:
                process.kill()
        self.report.seconds = time.monotonic() - self._begun_s
        return self.report

    def started(self, name: str, *arguments: object, environment: dict[str, str] | None = None) -> Process:
        """A process that is ended with the round."""
        process = Process(self.folder / "said" / f"{name}.log", *arguments, environment=environment)
        self._processes.append(process)
        return process

    def note(self, what: str) -> None:
        self.trace.append(f"{time.monotonic() - self._begun_s:7.2f} s  {what}")

    # --- begin and end

    def _prepare(self) -> None:
        log = KafkaLog(self.url)
        try:
            for app in (first_app(rich=self.rich), second_app()):
                prepare_log(log, app.plan(), create_declared=True)
            count = 500 if self.rich else EVENTS_PER_FAULT * self._faults
            writer = log.writer("feed")
            writer.append(feed.outputs(self._seed, 0, count, rich=self.rich))
            writer.commit({feed.PLACE: count}, feed.GROUP)
            writer.close()
            first, second = (
                [one for one in self.members if one.service == name] for name in ("first", "second")
            )
            for one in first:
                one.start()
            tape = first_app(rich=self.rich).plan().tape_topic

            def begun() -> bool:
                for one in first:
                    one.keep()
                return all(log.end_offset(tape, number) for number in range(PARTITIONS))

            wait_until(begun, "every task of the first service has committed")
        finally:
            log.close()
        for one in second:
            one.start()

    def _keep_feeding(self) -> None:
        if self.rich and (self._feeder is None or self._feeder.code() is not None):
            self._feeder = self.started(
                f"feeder-{len(self._processes)}",
                "tests.soak.feed", self.url, self._seed, "rich", _FED_PER_SECOND,
            )  # fmt: skip

    def _end(self) -> None:
        """No more faults: everything is read and handled, by one process of each service after the other."""
        if self._feeder is not None:
            self._feeder.kill()
        for one in self.members:
            process = one.process
            if process is not None and process.code() is None:
                process.signal(signal.SIGTERM)
                assert process.ended() in _LEFT, process.text()[-3_000:]
        for one in self.members[::2]:
            self.note(f"{one.service} runs to the end")
            process = one.start(slow=False, until_end=True)
            assert process.ended() == 0, f"{one.service} did not come to its end: {process.text()[-3_000:]}"
        for process in self._processes:
            found = [line for line in process.text().splitlines() if "Traceback" in line]
            assert not found, f"{process.said.name}: {found[0]}"

    # --- faults

    def _strike(self) -> None:
        for one in self.members:
            one.keep()
        self._keep_feeding()
        name = self.random.choice([name for name, (odds, _) in FAULTS.items() for _ in range(odds)])
        member = self.random.choice(self.members)
        self.report.faults[name] += 1
        self.note(f"{name}: {member.service} {member.state.name}")
        FAULTS[name][1](self, member)

    def kill(self, member: Member) -> None:
        member.keep().signal(signal.SIGKILL)
        if self.random.random() < 0.5:
            time.sleep(self.random.uniform(0, 1.5 * SESSION_S))  # others may take its tasks over
        member.keep().code()

    def kill_while_starting(self, member: Member) -> None:
        member.keep().kill()
        process = member.start()
        time.sleep(self.random.uniform(0.3, 4.0))
        process.kill()
        member.start()

    def kill_service(self, member: Member) -> None:
        for one in self.members:
            if one.service == member.service and one.process is not None:
                one.process.kill()

    def terminate(self, member: Member) -> None:
        process = member.keep()
        process.signal(signal.SIGTERM)
        assert process.ended() in _LEFT, process.text()[-3_000:]
        time.sleep(self.random.uniform(0, 2.0))
        member.start()

    def stop(self, member: Member) -> None:
        """Shortly, or for so long that the group gives its tasks to others: then it wakes as a zombie."""
        process = member.keep()
        process.signal(signal.SIGSTOP)
        time.sleep(SESSION_S * self.random.choice((0.1, 0.5, 1.5)))
        process.signal(signal.SIGCONT)

    def lose_state(self, member: Member) -> None:
        member.keep().kill()
        shutil.rmtree(member.state, ignore_errors=True)
        member.start()

    def kill_broker(self, _member: Member) -> None:
        node = self.random.choice(self.cluster.nodes)
        node.kill()
        time.sleep(self.random.uniform(0, 2.0))
        self.cluster.start()

    def stop_broker(self, _member: Member) -> None:
        node = self.random.choice(self.cluster.nodes)
        node.pause()
        time.sleep(self.random.choice((0.5, 4.0)))
        node.resume()


FAULTS: dict[str, tuple[int, Callable[[Round, Member], None]]] = {
    "kill -9": (4, Round.kill),
    "kill -9 while starting": (2, Round.kill_while_starting),
    "kill -9 of a service": (1, Round.kill_service),
    "SIGTERM and restart": (3, Round.terminate),
    "SIGSTOP and wake": (3, Round.stop),
    "lost state": (2, Round.lose_state),
    "broker killed": (1, Round.kill_broker),
    "broker stopped": (1, Round.stop_broker),
}
"""Each with its odds."""


def main() -> int:
    """Rounds for some minutes; ends with 1 at the first that fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=10, help="in each round")
    options = parser.parse_args()
    deadline, seed, faults = time.monotonic() + options.minutes * 60, options.seed, Counter[str]()
    while time.monotonic() < deadline:
        with tempfile.TemporaryDirectory(prefix="tailrace-kafka-") as name:
            folder = Path(name)
            (folder / "broker").mkdir()
            with Cluster(folder / "broker") as cluster:
                report = Round(folder, cluster, seed, options.faults, rich=bool(seed % 2)).run()
        faults += report.faults
        sys.stdout.write(
            f"seed {seed}: {report.faults.total()} faults, {report.starts} starts, {report.figures}, {report.seconds:.0f} s\n"
        )
        sys.stdout.flush()
        seed += 1
    for fault, count in sorted(faults.items()):
        sys.stdout.write(f"{count:6,}  {fault}\n")
    sys.stdout.write(f"{faults.total():6,}  faults in all, and no violation\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
