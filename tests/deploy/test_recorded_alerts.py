"""Alerts against the metrics of processes that have the fault: two scrapes of each become the series that promtool evaluates.

The series last for an hour. They have the first scrape for ten minutes, come to the second within 15 minutes, and stay there.
The other alerts must be silent. ``TailraceTasksMove`` needs processes that share tasks: on Kafka. Alerts on metrics whose values
``tests.runtime.test_http_answers`` compares are not here: ``alerts_test.yml`` has them all.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.commands import done
from tests.deploy.faulty import Step
from tests.deploy.test_alerts import RULES, promtool
from tests.http.asking import ask
from tests.runtime.processes import Running, wait_until
from tests.runtime.test_http_answers import port_of

APP, MOVABLE = "tests.deploy.faulty:app", "tests.deploy.faulty:movable"
FIRST_MS = 1_700_000_000_000
WAITING = "> 1000000"
"""Events that wait: too many for a test. Their rule is tested with a thousandth."""
LAST_COMMIT = "tailrace_last_commit_timestamp_seconds"
BEGIN, END, LAST = 10, 25, 60
EVALUATED = "27m"


class Scrape(NamedTuple):
    """The samples of the service by series, and when they were taken. None: it did not answer."""

    samples: dict[str, float] | None
    at_s: float

    def named(self, name: str) -> list[float]:
        assert self.samples is not None
        return [value for series, value in self.samples.items() if series.startswith(f"{name}{{")]


class Service:
    """The app as a process on a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.log, self.state = folder / "log", folder / "state"
        done("topics", "apply", "--app", APP, "--log", self.log)

    def run(self) -> Running:
        where = ("--log", self.log, "--state", self.state, "--log-format", "json")
        return Running("run", APP, *where, "--commit-interval", "20ms", "--http", "127.0.0.1:0")

    def append(self, topic: str, events: Sequence[Step]) -> None:
        lines = b"\n".join(map(msgspec.json.encode, events))
        done("log", "append", topic, "--app", APP, "--log", self.log, stdin=lines)


def scrape(port: int) -> Scrape:
    try:
        text = ask(port, "/metrics").body.decode()
    except OSError:
        return Scrape(None, time.time())
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name.startswith("tailrace_"):
                labels = ", ".join(
                    f'{name}="{value}"' for name, value in {**one.labels, "instance": "a"}.items()
                )
                found[f"{one.name}{{{labels}}}"] = one.value
    return Scrape(found, time.time())


def scraped_when(port: int, condition: Callable[[Scrape], bool], what: str) -> Scrape:
    found: list[Scrape] = []

    def is_so() -> bool:
        found[:] = [scrape(port)]
        return condition(found[0])

    wait_until(is_so, what)
    return found[0]


def series_of(first: Scrape, then: Scrape) -> list[dict[str, str]]:
    """The two scrapes as series of promtool, whose clock begins at 0."""
    assert first.samples is not None
    up = "1x60" if then.samples is not None else f"1x{BEGIN} 0x{LAST - BEGIN}"
    made = [{"series": 'up{job="tailrace", instance="a"}', "values": up}]
    for name in sorted(first.samples.keys() | (then.samples or {}).keys()):
        one = first.samples.get(name)
        other = (then.samples or {}).get(name)
        if name.startswith(LAST_COMMIT) and one is not None and other is not None:
            # By the clock of promtool: a commit that stays where it is becomes older, others have the same age at each moment.
            values = f"{one - first.at_s:f}x{LAST}" if one == other else f"{other - then.at_s:f}+60x{LAST}"
        elif other is None:
            values = f"{one:f}x{BEGIN}"
        elif one is None:
            values = f"_x{END} {other:f}x{LAST - END}"
        else:
            ramp = f"{one:f}{(other - one) / (END - BEGIN):+f}x{END - BEGIN}"
            values = f"{one:f}x{BEGIN} {ramp} {other:f}x{LAST - END}"
        made.append({"series": name, "values": values})
    return made


def check_firing(folder: Path, first: Scrape, then: Scrape, alerts: set[str]) -> None:
    """Let promtool evaluate the rules over the two scrapes: these alerts fire, and no others."""
    rules = RULES.read_text("utf-8")
    assert rules.count(WAITING) == 1
    (folder / "alerts.yml").write_text(rules.replace(WAITING, "> 1000"))
    expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)]
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    test = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series_of(first, then),
                "promql_expr_test": [{"expr": firing, "eval_time": EVALUATED, "exp_samples": expected}],
            }
        ],
    }
    (folder / "test.yml").write_bytes(msgspec.json.encode(test))
    promtool("test", "rules", "test.yml", folder=folder)


def steps(count: int, do: str = "", *, since: int = 0) -> list[Step]:
    return [Step(f"k{n % 7}", FIRST_MS + (since + n) * 1_000, do) for n in range(count)]


def test_a_service_at_work_and_one_that_is_killed(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with service.run() as running:
        port = port_of(running)
        service.append("steps", steps(10))
        service.append("beats", steps(10))
        first = scraped_when(port, lambda one: one.named("tailrace_records_total") == [20], "all is read")
        service.append("steps", steps(10, since=10))
        service.append("beats", steps(10, since=10))
        then = scraped_when(port, lambda one: one.named("tailrace_records_total") == [40], "more is read")
        check_firing(tmp_path, first, then, set())
        running.signal(signal.SIGKILL)
        running.ended()
        check_firing(tmp_path, first, scrape(port), {"TailraceDown"})


def test_a_handler_that_hangs_while_records_wait(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with service.run() as running:
        port = port_of(running)
        scraped_when(port, lambda one: one.named("tailrace_task_running") == [1], "it runs")
        # The first slow ones are of one slice. After it the lag is known, which the metrics keep while the handler hangs.
        service.append("steps", [*steps(700, "slow"), *steps(1, "hang", since=700), *steps(5_000, since=701)])
        found = "tailrace_handler_stuck_seconds"
        first = scraped_when(
            port, lambda one: max(one.named(found), default=0) > 10.5, "it has hung for long"
        )
        then = scraped_when(port, lambda one: max(one.named(found)) > 11.5, "it hangs")
        check_firing(tmp_path, first, then, {"TailraceHandlerStuck", "TailraceNoCommit"})


def test_an_input_without_events_lets_those_of_others_wait(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with service.run() as running:
        port = port_of(running)
        service.append("right", steps(1))
        service.append("left", steps(1_500, since=1))
        waiting = lambda one: sum(one.named("tailrace_waiting_events")) >= 1_500  # noqa: E731  # used twice
        first = scraped_when(port, waiting, "they wait")
        check_firing(tmp_path, first, scrape(port), {"TailraceEventsWait"})


def test_events_that_come_after_their_input_was_idle(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with service.run() as running:
        port = port_of(running)
        service.append("steps", steps(1))
        service.append("beats", steps(1, since=100))
        idle = 'tailrace_source_idle{app="faulty", partition="0", source="steps", instance="a"}'
        first = scraped_when(
            port, lambda one: one.samples is not None and one.samples.get(idle) == 1, "it is idle"
        )
        service.append("steps", [*steps(1, since=50), *steps(1, since=200)])
        service.append("beats", steps(1, since=101))
        name = "tailrace_late_after_idle_events_total"
        then = scraped_when(
            port,
            lambda one: sum(one.named(name)) == 1 and one.named("tailrace_records_total") == [5],
            "it was late, and all is read",
        )
        check_firing(tmp_path, first, then, {"TailraceLateAfterIdle"})


def test_without_the_fault_promtool_refuses(tmp_path: Path) -> None:
    none = Scrape({'tailrace_task_running{app="faulty", partition="0", instance="a"}': 1.0}, 0.0)
    check_firing(tmp_path, none, none, set())
    with pytest.raises(AssertionError, match="FAILED"):
        check_firing(tmp_path, none, none, {"TailraceTaskNotRunning"})


@pytest.mark.nightly
def test_tasks_that_move_with_a_process_that_starts_again_and_again(kafka_url: str, tmp_path: Path) -> None:
    done("topics", "apply", "--app", MOVABLE, "--log", kafka_url)

    def process(name: str) -> Running:
        where = ("--log", kafka_url, "--state", tmp_path / name, "--log-format", "json")
        return Running("run", MOVABLE, *where, "--http", "127.0.0.1:0")

    with process("stays") as stays:
        port = port_of(stays)

        def has_all() -> object:
            return scraped_when(
                port, lambda one: one.named("tailrace_task_running") == [1.0] * 32, "it has all tasks"
            )

        has_all()
        first = scraped_when(port, lambda one: True, "it answers")
        check_firing(tmp_path, first, first, set())
        for _ in range(2):
            with process("comes") as comes:
                beside = port_of(comes)
                scraped_when(beside, lambda one: sum(one.named("tailrace_task_running")) > 10, "it has tasks")
                comes.signal(signal.SIGTERM)
                assert comes.ended() == 0
            has_all()
        then = scraped_when(port, lambda one: True, "it answers")
        check_firing(tmp_path, first, then, {"TailraceTasksMove"})
        stays.signal(signal.SIGTERM)
        assert stays.ended() == 0
