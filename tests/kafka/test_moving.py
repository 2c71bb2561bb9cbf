"""An app continues after a move as it would have without one: the two chained services of the soak are moved between logs.

Each leg feeds some events, runs both services until they have committed something new, kills them, and moves them. At the end
everything is checked on the last log as a soak is: against the oracle, and by a replay of all legs from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import StoredLog
from tailrace.log.kafka import KafkaLog
from tests.soak import checks, feed
from tests.soak.apps import PARTITIONS, first_app, second_app
from tests.soak.processes import Process, wait_until

EVENTS = 300
"""Of each leg."""
SEED = 5
SERVICES = ("first", "second")


class Life:
    """Both services, on one log after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plans = [first_app(rich=False).plan(), second_app().plan()]
        self.fed = 0
        self.state = folder / "state"
        self.processes: list[Process] = []

    def begin(self, log: StoredLog) -> None:
        self.log = log
        for plan in self.plans:
            prepare_topics(log, plan, create_declared=True)

    @property
    def place(self) -> Path | str:
        return self.log.path if isinstance(self.log, EmbeddedLog) else str(self.log)

    def feed(self, events: int = EVENTS) -> None:
        writer = self.log.writer("feed")
        writer.append(feed.outputs(SEED, self.fed, self.fed + events, rich=False))
        self.fed += events
        writer.commit({feed.PLACE: self.fed}, feed.GROUP)  # groups of others stay behind in a move
        writer.close()

    def start(self, service: str, *options: object) -> Process:
        made = Process(
            self.folder / f"{service}-{len(self.processes)}.log",
            "tailrace", "run", f"tests.soak.apps:{service}", "--log", self.place, "--state", self.state,
            "--commit-interval", "200ms", *options,
            environment={"SOAK_RICH": "", "TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": "6000"},
        )  # fmt: skip
        self.processes.append(made)
        return made

    def live_and_die(self) -> None:
        """Run until every task of the first service has committed something new, and kill both."""
        tapes = [TopicPartition("first.tape", number) for number in range(PARTITIONS)]
        before = {tape: self.log.end_offset(*tape) for tape in tapes}
        running = [self.start(service) for service in SERVICES]

        def committed() -> bool:
            for one in running:
                assert one.code() is None, one.text()
            return all(self.log.end_offset(*tape) > before[tape] for tape in tapes)

        wait_until(committed, "all tasks have committed")
        for one in running:
            one.kill()
        if isinstance(self.log, KafkaLog):
            log = self.log
            wait_until(
                lambda: not any(map(log.admin.members, SERVICES)),
                "the group has forgotten the killed processes",
            )

    def live_to_the_end(self) -> None:
        for service in SERVICES:
            process = self.start(service, "--end-of-input", "--after-end")
            assert process.ended() == 0, process.text()

    def move(self, log: StoredLog) -> None:
        found = move_apps(self.plans, self.log, log)
        assert found.rows > 50
        assert sum(one.records for one in found.topics) > EVENTS
        self.log = log

    def end(self) -> None:
        for process in self.processes:
            process.kill()


@pytest.fixture
def logs(kafka_url, tmp_path) -> Iterator[list[StoredLog]]:
    made: list[StoredLog] = [
        EmbeddedLog(tmp_path / "one"),
        KafkaLog(f"{kafka_url}one."),
        EmbeddedLog(tmp_path / "other"),
    ]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def life(tmp_path) -> Iterator[Life]:
    made = Life(tmp_path)
    yield made
    made.end()


@pytest.mark.long
def test_a_life_on_several_logs_is_one_history(life, logs, tmp_path) -> None:
    """To Kafka, and from there to another embedded log; everything equals a life on one log."""
    first, *others = logs
    life.begin(first)
    for log in others:
        life.feed()
        life.live_and_die()
        life.move(log)
    life.state = tmp_path / "empty"
    life.feed()
    life.live_to_the_end()
    checks.check(life.place, dict.fromkeys(SERVICES, life.state), SEED, rich=False)
    check_equal(life, tmp_path)


def check_equal(life: Life, folder: Path) -> None:
    """Outputs, timers and state are those of services that were fed the same and never moved."""
    stayed = Life(folder)
    stayed.state = folder / "stayed-state"
    stayed.processes = life.processes
    log = EmbeddedLog(folder / "stayed")
    stayed.begin(log)
    while stayed.fed < life.fed:
        stayed.feed()
    stayed.live_to_the_end()
    for plan in life.plans:
        for topic in plan.outputs:
            mine, theirs = (
                [sorted(map(bare, some)) for some in checks.read(one, topic)] for one in (life.log, log)
            )
            assert mine == theirs
        for number in range(PARTITIONS):
            states = [AppHistory(plan, one).committed(number, with_rows=True).rows for one in (life.log, log)]
            rows = [dict(one.rows()) for one in states if one is not None]
            assert len(rows) == 2
            assert rows[0] == rows[1]
    log.close()


def bare(record) -> tuple[object, ...]:
    """Without the running number, which depends on the commits of the service before: see ``checks.check_equal``."""
    return record.timestamp_ms, record.key, record.value
