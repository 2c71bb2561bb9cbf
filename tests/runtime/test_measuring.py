"""What the runtime measures of a service: real processes, held against what plain Python knows of the same events."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tailrace as tr
from tailrace.core import rows
from tailrace.core.errors import HandlerError
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.testing import Harness
from tests.cli.commands import done, records
from tests.http.asking import ask
from tests.runtime import metered
from tests.runtime.metered import Job
from tests.runtime.processes import ROOT, Running, wait_until
from tests.runtime.test_http_answers import FIRST_MS, Metrics, port_of

APP = "tests.runtime.metered:app"


def service(folder: Path, app: str = APP, *more: object) -> Running:
    where = ("--log", folder / "log", "--state", folder / "state", "--create-topics", "--log-format", "json")
    return Running("run", app, *where, "--commit-interval", "50ms", "--http", "127.0.0.1:0", *more)


def metrics(port: int) -> Metrics:
    return Metrics(port, app="metered")


def append(folder: Path, topic: str, jobs: Iterable[Job], *more: bytes) -> None:
    """Append jobs, and records that are none."""
    log, declared = EmbeddedLog(folder / "log"), {"slow": metered.slow, "quick": metered.quick}[topic]
    outputs = [Output(topic, declared.encode_key(one), declared.encode_emitted(one), one.at) for one in jobs]
    log.append_all([*outputs, *(Output(topic, b"a", one, 0) for one in more)])
    log.close()


def test_dead_letters_state_and_delays_are_those_of_the_events(tmp_path: Path) -> None:
    random, now_ms = Random(5), time.time_ns() // 1_000_000
    jobs = [
        Job(f"who-{random.randrange(300)}", now_ms - 7_000 + at, size=2_000, fails=random.random() < 0.1)
        for at in range(900)
    ]
    future = [Job("a", now_ms + 7_200_000)] * 4
    with service(tmp_path) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        assert metrics(port).samples["tailrace_dead_letters_total", "handler-failed"] == 0
        append(tmp_path, "slow", [*jobs, *future])
        append(tmp_path, "quick", [], *[b'{"who": "a"}', b"nonsense"] * 3)
        everything = len(jobs) + 10
        wait_until(
            lambda: (
                (
                    metrics(port).total("tailrace_records_total")
                    + metrics(port).total("tailrace_refused_records_total")
                )
                == everything
            ),
            "all are committed",
        )
        found = metrics(port)
        failed = sum(one.fails for one in jobs)
        by_reason = {
            labels[1]: value for labels, value in found.samples.items() if "dead_letters" in labels[0]
        }
        wanted = {"handler-failed": failed, "from-the-future": 4, "wrong-type": 3, "undecodable": 3}
        assert {reason: value for reason, value in by_reason.items() if value} == wanted
        listed = Counter(
            one["reason"]
            for one in done("dead-letters", "list", APP, "--log", tmp_path / "log", "--json").lines
        )
        assert listed == {reason: value for reason, value in by_reason.items() if value}
        # The records are 7 s old and younger, and those of the future count as 0.
        count = found.samples["tailrace_source_to_commit_seconds_count", "slow"]
        total = found.samples["tailrace_source_to_commit_seconds_sum", "slow"]
        most_s = (time.time_ns() // 1_000_000 - jobs[0].at) / 1_000
        assert 2 <= count <= 2 * found.total("tailrace_commits_total")
        assert 2 * (7.0 - 0.9) < total < count * most_s
        assert found.samples["tailrace_source_to_commit_seconds_bucket", "5.0", "slow"] < count
        handled = {one.who for one in jobs if not one.fails}
        size = found.total("tailrace_state_size_bytes")
        assert 0.5 < size / (2_000 * len(handled)) < 4
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
    state = dict[tuple[int, bytes | None], bytes | None]()
    for number, one in records(tmp_path / "log", "metered.changelog"):
        state[number, one.key] = one.value
    kept = [at for at, value in state.items() if value is not None and at[1] != rows.CUT_ROW]
    assert found.total("tailrace_state_rows") == len(kept)
    assert len(kept) > len(handled), "instances and timers"
    shutil.rmtree(tmp_path / "state")
    begun_s = time.monotonic()
    with service(tmp_path) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        found = metrics(port)
        assert 0 < found.total("tailrace_restore_seconds") < time.monotonic() - begun_s
        assert found.total("tailrace_state_rows") == len(kept)


def test_the_time_of_handlers_is_about_the_time_that_they_take(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        append(tmp_path, "slow", [Job("a", FIRST_MS + at, ms=30) for at in range(200)])
        append(tmp_path, "quick", [Job("a", FIRST_MS + at, ms=10) for at in range(200)])
        wait_until(lambda: metrics(port).total("tailrace_records_total") == 400, "all are committed")
        wait_until(
            lambda: metrics(port).samples.get(("tailrace_handler_seconds_total", "Worker.quickly"), 0) > 0.5,
            "the samples are published",
        )
        found = metrics(port).samples
        for handler in ("slowly", "quickly"):
            took_s = found[f"{handler}_seconds_total",]
            sampled_s = found["tailrace_handler_seconds_total", f"Worker.{handler}"]
            assert 0.7 * took_s - 0.3 < sampled_s < 1.3 * took_s + 0.5
        assert "Worker.later" not in {labels[-1] for labels in found}


def test_the_documentation_lists_all_metrics_with_their_types_and_labels(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operating.md").read_text("utf-8")
    lines = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    listed = {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in lines}
    with service(tmp_path, "tests.runtime.waits:app") as running:
        port = port_of(running)
        wait_until(lambda: ask(port, "/readyz").status == 200, "it is ready")
        given = [b'{"who": "a", "at": %d}' % at for at in (1_700_000_000_000, 1_700_000_009_000)]
        done(
            *("log", "append", "steps", "--app", "tests.runtime.waits:app", "--log", tmp_path / "log"),
            stdin=b"\n".join(given),
        )
        wait_until(
            lambda: Metrics(port, app="waits").total("tailrace_source_to_commit_seconds_count") > 0,
            "it is committed",
        )
        wait_until(
            lambda: Metrics(port, app="waits").total("tailrace_handler_seconds_total") > 0,
            "a handler was seen",
        )
        text = ask(port, "/metrics").body.decode()
    scraped = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("tailrace_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            kept = [dict(one.labels) for one in family.samples if not one.name.endswith("_created")]
            assert kept, f"{name} has no sample"
            labels = [label for label in kept[0] if label not in ("app", "le")]
            scraped[name] = (family.type, labels)
            assert family.documentation
    assert {name: (kind, sorted(labels)) for name, (kind, labels) in listed.items()} == {
        name: (kind, sorted(labels)) for name, (kind, labels) in scraped.items()
    }


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("count", -1.0),
        ("count", float("nan")),
        ("count", float("inf")),
        ("observe", float("nan")),
        ("observe", float("-inf")),
    ],
)
def test_a_number_that_would_spoil_a_metric_is_refused_where_it_is_measured(how: str, value: float) -> None:
    app = tr.App("numbers")
    jobs = app.topic("jobs", Job, key="who", event_time="at")

    @app.actor
    class Counts(tr.Actor):
        @tr.process(jobs)
        def job(self, event: Job, ctx: tr.Context[str]) -> None:
            ctx.metrics.count("jobs", 0)
            getattr(ctx.metrics, how)("spoilt", event.ms or value)

    with Harness(app) as h:
        h.send(jobs, Job("a", FIRST_MS, 2.5))
        h.commit()
        assert h.metrics == {"jobs": 0, "spoilt": 2.5 if how == "count" else [2.5]}
        with pytest.raises(
            HandlerError, match=r"the (counter|histogram) 'spoilt' takes no (-1\.0|nan|inf|-inf)"
        ):
            h.send(jobs, Job("a", FIRST_MS))
