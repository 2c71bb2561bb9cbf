"""What a service answers about itself: held against what plain Python counts over the same events."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.core.declare.user_metrics import Measurement
from tailrace.core.engine.at_work import AtWork
from tailrace.http.listening import Listen
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.handler_watch import STUCK_S
from tailrace.runtime.http_answers import HttpAnswers
from tailrace.runtime.measuring import BUCKETS, Published, Seen, UserMetrics
from tailrace.runtime.preparing import prepare_log
from tests.cli.commands import at, run
from tests.http.asking import ask
from tests.runtime import stuck
from tests.runtime.measured import Sale, app
from tests.runtime.processes import Running, wait_until

APP = "tests.runtime.measured:app"
FIRST_MS = 1_700_000_000_000


def append(log: Path, sales: list[Sale]) -> None:
    lines = b"\n".join(msgspec.json.encode(one) for one in sales)
    ended = run("log", "append", "sales", "--app", APP, "--log", log, stdin=lines)
    assert ended.code == 0, ended.err


def service(folder: Path, *more: object) -> Running:
    where = (*at(folder), "--create-topics", "--log-format", "json")
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


def test_a_task_has_its_counters_before_its_first_commit_and_names_that_are_taken_are_left_out(
    tmp_path: Path,
) -> None:
    """Prometheus sees no increase in a counter that begins with it."""
    with service(tmp_path) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        found = Metrics(port)
        assert found.samples["tailrace_failed_units_total", "0"] == 0
        assert found.samples["tailrace_last_commit_timestamp_seconds", "0"] > 1_700_000_000
        append(tmp_path / "log", [Sale("a", FIRST_MS, 2_000.0), *sales(3, 49)])
        wait_until(lambda: Metrics(port).total("tailrace_records_total") == 50, "all are committed")
        assert ("sales_seen",) not in Metrics(port).samples
        (said,) = [one["message"] for one in running.logged if "is not reported" in one["message"]]
        assert said.startswith(
            "the metric 'sales_seen', a gauge, is not reported: its name is that of 'sales-seen', a counter"
        )
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
        own.add(Measurement(*one), 0)
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


def answered(path: str, *seen: Seen | None) -> tuple[int, Any]:
    known = {str(number): one for number, one in enumerate(seen)}
    answers = HttpAnswers(Listen("127.0.0.1", 0), lambda: (known, ()), app.plan())
    status, _, body = answers._answer({"path": path, "method": "GET", "headers": []})
    return status, msgspec.json.decode(body)


def seen(
    tasks: tuple[int, ...], running: tuple[int, ...], *, joined: bool = True, stuck_s: float = 0.0
) -> Seen:
    now_s = time.monotonic()
    stuck = (AtWork("Shop.sold", "a", 0, "sales", 7).fields(), now_s - stuck_s) if stuck_s else None
    return Seen(1, Published(now_s, joined, tasks, running, ()), stuck)


@pytest.mark.parametrize(("for_s", "status"), [(STUCK_S - 30, 200), (STUCK_S + 1, 503)])
def test_a_process_with_a_handler_that_hangs_is_not_alive_after_a_minute(for_s: float, status: int) -> None:
    for others in ((), (seen((1,), (1,)),), (seen((1,), (1,), stuck_s=STUCK_S - 40), None)):
        found, said = answered("/livez", *others, seen((0,), (0,), stuck_s=for_s))
        assert found == status
        assert said.keys() == {"seconds_since_turn", "handler", "running_s"}, "the key needs a token"
        assert said["handler"] == "Shop.sold"
        assert said["running_s"] == pytest.approx(for_s, abs=5)


@pytest.mark.parametrize(
    ("workers", "joined", "not_running"),
    [
        ([seen((0, 1), (0, 1))], True, []),
        ([seen((), (), joined=False)], False, []),
        ([seen((0, 1), (0,))], True, [1]),
        ([seen((0, 2), (0, 2)), seen((1, 3), (3,))], True, [1]),
        ([seen((0, 2), (0, 2)), seen((1, 3), (1, 3))], True, []),
        ([seen((0, 2), (0, 2)), seen((1, 3), (1, 3), joined=False)], False, []),
        ([seen((0, 2), (0, 2)), None], False, []),
    ],
)
def test_it_is_ready_when_all_processes_have_joined_and_run_their_tasks(
    workers: list[Seen | None], joined: bool, not_running: list[int]
) -> None:
    found, said = answered("/readyz", *workers)
    assert found == (200 if joined and not not_running else 503)
    assert (said["joined"], said["not_running"]) == (joined, not_running)


def test_the_metrics_of_several_workers_add_up_also_when_one_is_killed(tmp_path: Path) -> None:
    first, second = sales(1, 300), sales(2, 200)
    good = [one for one in first if one.amount >= 0]
    with service(tmp_path, "--workers", 2) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        append(tmp_path / "log", first)
        wait_until(lambda: Metrics(port).total("sales_seen_total") == len(good), "all are published")
        found = Metrics(port)
        assert found.total("tailrace_records_total") == len(first)
        assert found.total("turnover_total") == found.total("amount_sum") == sum(one.amount for one in good)
        for bound in BUCKETS:
            assert found.samples["amount_bucket", repr(bound)] == sum(one.amount <= bound for one in good)
        assert {at[1] for at in found.samples if at[0] == "tailrace_task_running"} == {"0", "1"}
        assert {at[1] for at in found.samples if at[0] == "process_cpu_seconds_total"} == {
            "supervisor",
            "0",
            "1",
        }
        assert ask(port, "/readyz").json["tasks"] == [0, 1]
        running.signal(signal.SIGKILL, running.started_workers()[1])
        running.wait_for("a worker is started", 3)
        falls = list[float]()

        def is_back() -> bool:
            falls.append(Metrics(port).total("sales_seen_total"))
            return ask(port, "/readyz").status == 200

        wait_until(is_back, "it is ready again")
        assert set(falls) == {len(good)}
        append(tmp_path / "log", second)
        more = sum(one.amount >= 0 for one in second)
        wait_until(lambda: Metrics(port).total("sales_seen_total") == len(good) + more, "all are published")
        found = Metrics(port)
        assert found.total("tailrace_records_total") == len(first) + len(second)
        assert found.total("amount_count") == len(good) + more
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
    ended = run("run", APP, "--log", tmp_path, "--http-token-file", tmp_path / "token")
    assert "--http-token-file goes with --http" in ended.err


def test_a_handler_that_is_stuck_in_a_worker_is_known_at_once(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    prepare_log(log, stuck.app.plan(), create_declared=True)
    watch = ("--http", "127.0.0.1:0", "--handler-warning", "200ms", "--grace", "2s")
    with Running("run", "tests.runtime.stuck:app", *at(tmp_path), "--workers", 2, *watch) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        log.append("orders", b"a", msgspec.json.encode(stuck.Order("a", 1, "sleep")), 1)
        wait_until(lambda: ask(port, "/livez").json.get("handler") == "Worker.ordered", "it is known")
        assert Metrics(port, app="stuck").total("tailrace_handler_stuck_seconds") >= 0.2
        running.signal(signal.SIGTERM)
        running.ended()
    log.close()
