"""What a service answers about itself: held against what plain Python counts over the same events."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.core.declare.user_metrics import Measurement
from tailrace.core.engine.at_work import AtWork
from tailrace.http.listening import Listen
from tailrace.runtime.handler_watch import HandlerWatch
from tailrace.runtime.http_answers import STUCK_S, HttpAnswers
from tailrace.runtime.measuring import BUCKETS, Measuring, UserMetrics
from tests.cli.commands import run
from tests.http.asking import ask
from tests.runtime.measured import Sale
from tests.runtime.processes import Running, wait_until

APP = "tests.runtime.measured:app"
FIRST_MS = 1_700_000_000_000


def append(log: Path, sales: list[Sale]) -> None:
    lines = b"\n".join(msgspec.json.encode(one) for one in sales)
    ended = run("log", "append", "sales", "--app", APP, "--log", log, stdin=lines)
    assert ended.code == 0, ended.err


def service(folder: Path, *more: object) -> Running:
    where = ("--log", folder / "log", "--state", folder / "state", "--create-topics", "--log-format", "json")
    return Running("run", APP, *where, "--commit-interval", "20ms", "--http", "127.0.0.1:0", *more)


def port_of(running: Running) -> int:
    running.wait_for("answering")
    return next(int(one["port"]) for one in running.logged if "port" in one)


class Metrics:
    """The samples of an answer, without the label of the app: by name and other labels."""

    def __init__(self, port: int, token: str = "", app: str = "measured") -> None:
        found = ask(port, "/metrics", token)
        assert found.status == 200, found
        self.samples: dict[tuple[str, ...], float] = {}
        for family in text_string_to_metric_families(found.body.decode()):
            for one in family.samples:
                labels = {**one.labels}
                if not one.name.startswith("process_"):
                    assert labels.pop("app") == app
                self.samples[one.name, *labels.values()] = one.value

    def total(self, name: str) -> float:
        return sum(value for labels, value in self.samples.items() if labels[0] == name)


def sales(seed: int, count: int) -> list[Sale]:
    """In order, but for a few that are late; some fail."""
    random, at, found = Random(seed), FIRST_MS, list[Sale]()
    for _ in range(count):
        at += random.randrange(3_000)
        late_by = random.choice([0] * 9 + [60_000])
        amount = random.choice([-1.0, *(random.randrange(1, 400) / 4 for _ in range(8))])
        found.append(Sale(f"shop-{random.randrange(6)}", at - late_by, amount))
    return found


def test_the_metrics_are_what_plain_python_counts_before_and_after_a_kill(tmp_path: Path) -> None:
    first, second = sales(1, 300), sales(2, 200)
    good = [one for one in first if one.amount >= 0]
    with service(tmp_path) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        append(tmp_path / "log", first)
        wait_until(lambda: Metrics(port).total("tailrace_records_total") == len(first), "all are committed")
        found = Metrics(port)
        assert found.total("sales_seen_total") == len(good), (
            "what a failed handler has measured counts nowhere"
        )
        assert found.total("turnover_total") == sum(one.amount for one in good)
        assert found.total("amount_sum") == sum(one.amount for one in good)
        assert found.total("amount_count") == len(good)
        for bound in BUCKETS:
            assert found.samples["amount_bucket", repr(bound)] == sum(one.amount <= bound for one in good)
        assert found.total("tailrace_failed_units_total") == len(first) - len(good)
        assert found.total("late_sales_total") <= found.total("tailrace_late_events_total")
        assert found.total("tailrace_lag_records") == 0
        assert found.total("tailrace_task_running") == 2
        assert found.total("tailrace_commits_total") >= 2
        by_partition = Counter[str]()
        for labels, value in found.samples.items():
            if labels[0] == "tailrace_watermark_timestamp_seconds":
                by_partition[labels[2]] += 1
                assert labels[1] == "Shop"
                assert value * 1_000 <= max(one.at for one in first)
        assert set(by_partition.values()) == {1}
        assert found.total("process_cpu_seconds_total") > 0
        late = found.total("tailrace_late_events_total")
        append(tmp_path / "log", second[:100])
        running.signal(signal.SIGKILL)  # in mid-work
        running.ended()
    append(tmp_path / "log", second[100:])
    with service(tmp_path) as running:
        port = port_of(running)
        everything = len(first) + len(second)
        wait_until(lambda: Metrics(port).total("tailrace_records_total") == everything, "all are committed")
        found = Metrics(port)
        # The service's own go on, and have each event once; those of handlers begin again.
        assert found.total("tailrace_failed_units_total") == sum(one.amount < 0 for one in [*first, *second])
        assert found.total("sales_seen_total") <= sum(one.amount >= 0 for one in second)
        assert found.total("tailrace_late_events_total") >= late
        graph = ask(port, "/graph").json
        assert {"sales", "Shop", "reports"} <= {one["name"] for one in graph["nodes"]}
        running.signal(signal.SIGTERM)
        assert running.ended() == 0


def test_a_metric_whose_name_is_taken_is_named_and_left_out(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        append(tmp_path / "log", [Sale("a", FIRST_MS, 2_000.0)])
        wait_until(lambda: Metrics(port).total("sales_seen_total") == 1, "it is counted")
        assert Metrics(port).samples["last_amount",] == 2_000.0
        assert ("sales_seen",) not in Metrics(port).samples
        (said,) = [one["message"] for one in running.logged if "is not reported" in one["message"]]
        assert said.startswith(
            "the metric 'sales_seen', a gauge, is not reported: its name is that of 'sales-seen', a counter"
        )


def test_a_task_has_its_counters_before_its_first_commit_in_a_process(tmp_path: Path) -> None:
    """Prometheus sees no increase in a counter that begins with it."""
    with service(tmp_path) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        found = Metrics(port)
        assert found.samples["tailrace_failed_units_total", "0"] == 0
        assert found.samples["tailrace_last_commit_timestamp_seconds", "0"] > 1_700_000_000
        append(tmp_path / "log", sales(3, 50))
        wait_until(lambda: Metrics(port).total("tailrace_records_total") == 50, "all are committed")
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
    with service(tmp_path) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        assert Metrics(port).total("tailrace_records_total") == 50


@pytest.mark.parametrize(
    "taken", [("observe", "amount", 1.0), ("count", "process_cpu", 1.0), ("gauge", "tailrace_lag", 1.0)]
)
def test_names_of_samples_are_taken_too(taken: Measurement) -> None:
    own = UserMetrics()
    for one in (("gauge", "amount_sum", 1.0), taken, ("gauge", "fine", 2.0)):
        own.add(Measurement(*one))
    assert [one.name for one in own.families()] == ["amount_sum", "fine"]


def test_who_has_no_token_gets_probes_only_and_wrong_paths_and_methods_are_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the-token-of-this-test")
    with service(tmp_path, "--http-token-file", tmp_path / "token") as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        assert ask(port, "/livez").json["seconds_since_turn"] < 60
        for path in ("/metrics", "/graph", "/nothing"):
            assert ask(port, path).status == 401
        assert ask(port, "/nothing", "the-token-of-this-test").status == 404
        assert ask(port, "/metrics", "the-token-of-this-test", method="POST").status == 405
        assert Metrics(port, "the-token-of-this-test").total("tailrace_task_running") == 2
        assert ask(port, "/metrics/../metrics", "the-token-of-this-test").status == 404


@pytest.mark.parametrize(("for_s", "status"), [(STUCK_S - 30, 200), (STUCK_S + 1, 503)])
def test_a_process_with_a_handler_that_hangs_is_not_alive_after_a_minute(for_s: float, status: int) -> None:
    watch = HandlerWatch("measured", 1_000, 1_000)
    answers = HttpAnswers(Listen("127.0.0.1", 0), Measuring(), watch, b"{}")
    watch.stuck = AtWork("Shop.sold", "a", 0, "sales", 7), time.monotonic() - for_s
    found, _, body = answers._answer({"path": "/livez", "method": "GET", "headers": []})
    assert found == status
    assert {"handler": "Shop.sold", "key": "'a'", "offset": 7}.items() <= msgspec.json.decode(body).items()


def test_a_process_that_has_not_joined_is_not_ready() -> None:
    answers = HttpAnswers(Listen("127.0.0.1", 0), Measuring(), HandlerWatch("measured", 1_000, 1_000), b"{}")
    assert answers._answer({"path": "/readyz", "method": "GET", "headers": []})[0] == 503


def test_several_workers_are_refused(tmp_path: Path) -> None:
    ended = run("run", APP, "--log", tmp_path, "--workers", 2, "--http", "127.0.0.1:0")
    assert ended.code == 2
    assert "--http goes with one worker process" in ended.err
    ended = run("run", APP, "--log", tmp_path, "--http-token-file", tmp_path / "token")
    assert "--http-token-file goes with --http" in ended.err
