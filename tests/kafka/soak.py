"""Exactly once on a real broker: the two chained services of the soak, each in several processes, struck by faults.

    python -m tests.kafka.soak --minutes 30 [--seed 0]

A round feeds events that follow from its seed, runs both services, and strikes: the list is in ``faults``. Then everything is brought
to its end and checked with what checks a round on the embedded log: the outputs against an oracle in plain Python, which works out
output i of a key from its inputs 0 to i, their numbers for gaps and repeats, and state, outputs and changelog against a replay, byte
for byte.

The seed also decides what a round is: with one input or three (``rich``), on one node or three, with one protocol of the group or the
other, with standbys or without. The moment of a fault depends on the machine, so a seed repeats faults and inputs, but not the exact run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

from tailrace.core.declare.plan import Plan as AppPlan
from tailrace.core.engine.tape import decode_cut
from tailrace.history.reading.changelog import last_cut
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tests.kafka.broker.cluster import Cluster
from tests.kafka.faults import FAULTS, NEED_DISK, NEED_NODES, SESSION_S
from tests.runtime.processes import PATIENCE_S, Process, wait_until
from tests.soak import checks, feed
from tests.soak.apps import PARTITIONS, first_app, second_app
from tests.soak.disk import Disk, continue_with_mounts, mounted
from tests.soak.rounds import Report, SoakRound, summary

BROKER_SETTINGS = {"group.consumer.session.timeout.ms": str(int(SESSION_S * 1_000))}
_DISK_BYTES = 256 << 20
_FED_PER_SECOND = 250
_SLOW_MS = {False: 1.0, True: 0.5}
_LEFT = (0, -signal.SIGTERM)
"""Exit codes of a process that was to leave: it may have been told so before it could listen."""
_IMPATIENT_S = 2.0
_STRETCH = 20
"""How far half of the processes look back at once for watermarks that were published while they were down."""
_FAILS = 0.02
"""How often a task fails after a slice, in half of the processes."""
_AWAY = ("does not answer", "does not take", "takes no records", "gave nothing")
"""What a process may end with that has waited for brokers in vain; on a busy machine they may take long to start again."""
_TAKEN = ("_FENCED", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "STALE_MEMBER_EPOCH")
"""The errors that a process may end with if it is stopped just after one of its tasks was taken over."""
_ABORTED = ("rd_kafka_admin_response_parse: Assertion", "rd_kafka_enq_once_del_source_return: Assertion")
"""librdkafka 2.16 ends the process where it cannot make sense of an answer, or of one that comes late. For the service it is as a kill."""
_FULL = ("too large", "No space left", "full", "size")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round is to be."""

    seed: int
    faults: int
    rich: bool
    members: int = 2
    """Processes of each service."""
    nodes: int = 1
    consumer_protocol: bool = False
    """The group's protocol is that of KIP-848."""
    standbys: bool = False
    """Each task has a standby."""
    pause_s: float = 1.0
    """On average, between two faults."""

    @classmethod
    def drawn(cls, seed: int, faults: int) -> Plan:
        """The round of a seed."""
        return cls(
            seed,
            faults,
            rich=bool(seed % 2),
            nodes=3 if seed % 5 == 4 else 1,
            consumer_protocol=seed % 3 == 2,
            standbys=seed % 4 in (1, 2),
        )

    @property
    def variant(self) -> str:
        """In words."""
        said = ["rich" if self.rich else "plain", f"{self.nodes} node{'s'[: self.nodes - 1]}"]
        some = {"KIP-848": self.consumer_protocol, "standbys": self.standbys}
        return ", ".join([*said, *(name for name, is_so in some.items() if is_so)])


class Member:
    """One of the processes of a service, with a state folder of its own, started again and again."""

    def __init__(self, service: str, number: int, round_: Round) -> None:
        self.service = service
        self.round = round_
        self.state = round_.states / f"{service}-{number}"
        self.process: Process | None = None
        self.excused: tuple[str, ...] = _AWAY
        """What the present process may end with by itself."""

    def start(self, *, end_of_input: bool = False) -> Process:
        """Start a process for it."""
        made, environment = self.round, dict(self.round.environment)
        made.report.starts += 1
        program, self.excused = "tailrace", _AWAY
        if not end_of_input:
            environment["SOAK_SLOW_MS"] = str(_SLOW_MS[made.plan.rich])
            changes = {
                "SOAK_STRETCH": (0.5, _STRETCH),
                "SOAK_FAILS": (0.5, _FAILS),
                "SOAK_PATIENCE_S": (0.25, _IMPATIENT_S),
            }
            drawn = {name: str(to) for name, (odds, to) in changes.items() if made.random.random() < odds}
            environment |= drawn
            program = "tests.kafka.launched" if drawn else program
        self.process = made.started(
            f"{self.service}-{made.report.starts}",
            program, "run", f"tests.soak.apps:{self.service}", "--log", made.url, "--state", self.state,
            "--commit-interval", made.random.choice(("50ms", "100ms", "300ms")),
            *(["--standbys", 1] if made.plan.standbys and not end_of_input else []),
            *(["--end-of-input", "--allow-dead-letters"] if end_of_input else []),
            environment=environment,
        )  # fmt: skip
        return self.process

    def keep(self) -> Process:
        """The process; started again if it has ended."""
        if self.process is None:
            return self.start()
        code = self.process.code()
        if code is None:
            return self.process
        self.judge(code)
        return self.start()

    def judge(self, code: int) -> None:
        """See that a process that ended had a reason."""
        assert self.process is not None
        words = "".join(
            line
            for line in self.process.text().splitlines(True)
            if not line.startswith("{") or '"exit_code":' in line
        )
        if code == -signal.SIGABRT and any(one in words for one in _ABORTED):
            self.round.report.faults["ended by librdkafka"] += 1
            return
        if code not in (-signal.SIGKILL, *_LEFT):
            assert code == 1, f"{self.service} ended with {code}: {self.process.text()[-3_000:]}"
            assert any(one in words for one in self.excused), f"{self.service} ended: {words[-3_000:]}"

    def terminate(self) -> None:
        """Let it leave, and wait for that."""
        process = self.process
        if process is not None:
            process.signal(signal.SIGTERM)
            code = process.ended()
            self.excused = (*self.excused, *_TAKEN)
            self.judge(code)

    def may_be_full(self) -> None:
        """Its disk is full for a moment."""
        self.excused = (*self.excused, *_FULL)


class Round(SoakRound):
    """A round; ``run`` is all of it."""

    def __init__(
        self, folder: Path, cluster: Cluster, plan: Plan, disk: Disk | None = None, said: Path | None = None
    ) -> None:
        super().__init__(folder, plan.seed, plan.variant, "kafka", said)
        self.plan = plan
        self.cluster = cluster
        self.disk = disk
        self.states = folder / "states" if disk is None else disk.mounted_at
        self.states.mkdir(exist_ok=True)
        self.prefix = f"round-{plan.seed}."
        self.url = f"kafka://{cluster.bootstrap}/{self.prefix}"
        self.plans = {one.name: one.plan() for one in (first_app(rich=plan.rich), second_app())}
        session = (
            {"GROUP_PROTOCOL": "consumer"}
            if plan.consumer_protocol
            else {"SESSION_TIMEOUT_MS": str(int(SESSION_S * 1_000))}
        )
        self.environment = {
            "SOAK_RICH": "1" if plan.rich else "",
            **{f"TAILRACE_KAFKA_CONSUMER_{name}": value for name, value in session.items()},
            # Longer than a round may take: whoever does not end the transaction of a dead owner waits in vain.
            "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS": "900000",
        }
        self.members = [
            Member(service, number, self) for service in ("first", "second") for number in range(plan.members)
        ]
        self.feeder: Process | None = None

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

    def _prepare(self) -> None:
        log = KafkaLog(self.url)
        try:
            for plan in self.plans.values():
                prepare_log(log, plan, create_declared=True)
            writer = log.writer("feed")
            writer.append(feed.outputs(self.seed, 0, 500, rich=self.plan.rich))
            writer.commit({feed.PLACE: 500}, feed.GROUP)
            writer.close()
            first, second = (
                [one for one in self.members if one.service == name] for name in ("first", "second")
            )
            for one in first:
                one.start()
            tape = self.plans["first"].tape_topic

            def begun() -> bool:
                for one in first:
                    one.keep()
                return all(log.end_offset(tape, number) for number in range(PARTITIONS))

            wait_until(begun, "every task of the first service has committed")
        finally:
            log.close()
        for one in second:
            one.start()
        self._keep_feeding()

    def _keep_feeding(self) -> None:
        if self.feeder is None or self.feeder.code() is not None:
            self.feeder = self.started(
                f"feeder-{len(self.processes)}",
                "tests.soak.feed", self.url, self.seed, "rich" if self.plan.rich else "plain", _FED_PER_SECOND,
            )  # fmt: skip

    def _strike(self) -> None:
        for one in self.members:
            one.keep()
        self._keep_feeding()
        unmet = (NEED_NODES if self.plan.nodes < 3 else set()) | (NEED_DISK if self.disk is None else set())
        odds = {name: odds for name, (odds, _) in FAULTS.items() if name not in unmet}
        (name,) = self.random.choices([*odds], [*odds.values()])
        member = self.random.choice(self.members)
        self.report.faults[name] += 1
        self.note(f"{name}: {member.state.name}")
        FAULTS[name][1](self, member)

    def _end(self) -> None:
        """No more faults: everything is read and handled, by one process of each service after the other."""
        assert self.feeder is not None
        self.feeder.kill()
        for one in self.members:
            self.note(f"{one.state.name} is to leave")
            one.terminate()
        log = KafkaLog(self.url)
        log.writer("feed").close()  # ends the transaction that the feeder has left open
        for one in self.members[:: self.plan.members]:
            self.note(f"{one.service} runs to the end")
            while code := self._finished(one.start(end_of_input=True), log, f"{one.service}.tape"):
                one.judge(code)
        log.close()

    def _finished(self, process: Process, log: KafkaLog, tape: str) -> int:
        """Its exit code, once it has ended. It may take as long as it likes, if it commits all the time: much may be left to read."""
        commits, renewed_s = -1, time.monotonic()
        while process.code() is None and time.monotonic() - renewed_s < PATIENCE_S / 2:
            now = sum(log.end_offset(tape, number) for number in range(PARTITIONS))
            if now != commits:
                commits, renewed_s = now, time.monotonic()
            time.sleep(0.2)
        return process.ended()

    def _check(self) -> None:
        self.check_what_was_said()
        self.note("the checks begin")
        log = KafkaLog(self.url)
        log.ends(log.topics())  # raises if a transaction is open
        for plan in self.plans.values():
            check_offsets(log, plan)
        log.close()
        states = {one.service: one.state for one in self.members[:: self.plan.members]}
        self.report.figures = checks.check(self.url, states, self.seed, rich=self.plan.rich)


def check_offsets(log: KafkaLog, plan: AppPlan) -> None:
    """The group has committed what the tasks have taken."""
    for number in range(plan.partitions):
        last = last_cut(log, TopicPartition(plan.changelog_topic, number))
        assert last is not None
        assert last.value is not None
        places = {TopicPartition(name, number): at for name, at in decode_cut(last.value).positions.items()}
        committed = log.committed_offsets(plan.app, places)
        assert committed == places, f"offsets of {plan.app}/{number}: {committed}, its cut has {places}"


def one_round(plan: Plan, said: Path | None = None) -> Report:
    """A round with brokers and a folder of its own. ``said`` is a folder for what the processes say, which stays."""
    with tempfile.TemporaryDirectory(prefix="tailrace-kafka-") as name:
        folder = Path(name)
        (folder / "broker").mkdir()
        with (
            Cluster(folder / "broker", plan.nodes, settings=BROKER_SETTINGS) as cluster,
            mounted(folder / "disk", _DISK_BYTES) as disk,
        ):
            return Round(folder, cluster, plan, disk, said).run()


def main() -> int:
    """Rounds for some minutes. The first that fails ends it with its error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--faults", type=int, default=25, help="in each round")
    parser.add_argument("--said", type=Path, help="a folder for what the processes of each round say")
    options = parser.parse_args()
    continue_with_mounts("tests.kafka.soak")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with the end of all processes
    begun_s = time.monotonic()
    reports: list[Report] = []
    while len(reports) < options.rounds and (
        time.monotonic() - begun_s < 60 * options.minutes or not reports
    ):
        plan = Plan.drawn(options.seed + len(reports), options.faults)
        reports.append(one_round(plan, options.said and options.said / str(plan.seed)))
        click.echo(reports[-1])
    click.echo(summary(reports, time.monotonic() - begun_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
