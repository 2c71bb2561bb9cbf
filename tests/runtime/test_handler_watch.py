"""Handlers that run for too long: they are named, and the service leaves in spite of them. Real processes and signals."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.engine.at_work import AtWork
from tailrace.core.records import output_of
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition
from tailrace.runtime import handler_watch
from tailrace.runtime.handler_watch import HandlerWatch
from tailrace.runtime.preparing import prepare_log
from tests.http.asking import ask
from tests.runtime import stuck
from tests.runtime.processes import Running, wait_until

APP = "tests.runtime.stuck:app"
KEY = "a"
GRACE_S = 5.0
"""The shortest with the margins of the default: the line that gives a handler up comes half a second before the process is ended without it."""
NAMED = "has not returned"


class Place:
    """A log with orders, and services on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = EmbeddedLog(folder / "log")
        prepare_log(self.log, stuck.app.plan(), create_declared=True)

    def order(self, *how: str) -> None:
        """Append orders of one key, a second of event time apart."""
        orders = [stuck.Order(KEY, 1_000 * at, one) for at, one in enumerate(how)]
        values = [(stuck.orders.encode_key(one), stuck.orders.encode_emitted(one), one.at) for one in orders]
        self.log.append_all([output_of(("orders", key, value, at, ())) for key, value, at in values])

    def run(self, *arguments: object, cured: bool = False) -> Running:
        where = ("--log", self.folder / "log", "--state", self.folder / "state", "--commit-interval", "1ms")
        return Running("run", APP, *where, *arguments, environment=self._environment(cured))

    def _environment(self, cured: bool) -> dict[str, str]:
        return {"STUCK_CURED": "1" if cured else "", "STUCK_BEGUN": str(self.begun)}

    @property
    def begun(self) -> Path:
        """Exists once a handler has begun with a regular expression."""
        return self.folder / "begun"

    def done(self) -> list[str]:
        """What the committed outputs say, in order."""
        found: list[str] = []
        for number in range(self.log.partitions("done")):
            with closing(self.log.reader({TopicPartition("done", number): 0})) as reader:
                while records := reader.fetch("done", number, 1_000).records:
                    found += [msgspec.json.decode(one.value or b"", type=stuck.Done).how for one in records]
        return found


@pytest.fixture
def place(tmp_path: Path):
    place = Place(tmp_path)
    yield place
    place.log.close()


def _named(service: Running) -> dict[str, Any]:
    return next(one for one in service.logged if one["message"].endswith(NAMED))


@pytest.mark.parametrize(("how", "workers"), [("sleep", 1), ("loop", 1), ("timer:sleep", 1), ("sleep", 2)])
def test_a_stuck_handler_is_named_and_given_up_without_a_commit(place, how, workers) -> None:
    place.order("quick")
    limits = ("--handler-warning", "200ms", "--grace", f"{GRACE_S * 1_000:.0f}ms", "--workers", workers)
    with place.run(*limits) as service:
        wait_until(lambda: place.done() == ["quick"], "the first order is committed")
        place.order(how, "later")
        service.wait_for(NAMED)
        named = _named(service)
        assert (named["level"], named["key"], named["partition"]) == ("warning", repr(KEY), _partition(place))
        assert "in _work" in named["traceback"]
        if how == "timer:sleep":
            assert (named["handler"], named["timer"]) == ("Worker.due", "job:sleep:0 at 0 ms")
            assert "offset" not in named
        else:
            assert (named["handler"], named["topic"], named["offset"]) == ("Worker.ordered", "orders", 1)
        begun_s = time.monotonic()
        service.signal(signal.SIGTERM)
        assert service.ended() == 1
        assert time.monotonic() - begun_s >= 0.8 * GRACE_S
        last = next(one for one in service.logged if "ends without a commit" in one["message"])
        assert (last["level"], last["handler"], last["exit_code"]) == ("error", named["handler"], 1)
    assert place.done() == ["quick"]
    with place.run("--end-of-input", cured=True) as service:
        assert service.ended() == 0, service.lines
    assert sorted(place.done()) == sorted(["quick", how.rpartition(":")[2], "later"])


def test_a_handler_that_lets_no_other_thread_run_is_given_up(place) -> None:
    place.order("regex")
    with place.run("--grace", "100ms") as service:
        wait_until(place.begun.exists, "the handler runs")
        service.signal(signal.SIGTERM)
        assert service.ended() == 1
        assert any("Worker.ordered of the key 'a' runs" in one["message"] for one in service.logged)
        assert len(service.logged) == len(service.lines)
    assert place.done() == []


def test_a_handler_that_returns_within_the_grace_period_is_committed(place) -> None:
    place.order("slow", "later")
    with place.run("--handler-warning", "100ms") as service:
        service.wait_for(NAMED)
        service.signal(signal.SIGTERM)
        assert service.ended() == 0, service.lines
        assert any(
            "Worker.ordered of the key 'a' has returned after" in one["message"] for one in service.logged
        )
        assert service.logged[-1]["message"] == "left"
    assert place.done()[:1] == ["slow"]


@pytest.mark.parametrize("how", ["quick", "timer:quick"])
def test_many_quick_calls_for_one_key_are_not_one_long_call(place, how) -> None:
    count = 80
    place.order(*[how] * count)
    with place.run("--handler-warning", "100ms", "--end-of-input") as service:
        assert service.ended() == 0, service.lines
        assert not [one for one in service.logged if one["message"].endswith(NAMED)]
    assert place.done() == ["quick"] * count


def _partition(place: Place) -> int:
    ends = [place.log.end_offset("orders", number) for number in range(2)]
    return next(number for number, end in enumerate(ends) if end)


def test_a_key_function_that_does_not_return_is_named_with_the_first_record_that_is_decoded(tmp_path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    prepare_log(log, stuck.by_key.plan(), create_declared=True)
    where = ("--log", tmp_path / "log", "--state", tmp_path / "state", "--http", "127.0.0.1:0")
    limits = ("--handler-warning", "200ms", "--grace", "2s", "--commit-interval", "1ms")
    with Running("run", "tests.runtime.stuck:by_key", *where, *limits) as service:
        service.wait_for("answering")
        port = next(int(one["port"]) for one in service.logged if "port" in one)
        log.append("orders", b"a", b'{"who": "a", "at": 1000, "how": ""}', 1_000)
        place = TopicPartition("stuck-key.tape", 0)
        wait_until(lambda: log.end_offset(*place) > 0, "the first order is committed")
        log.append("orders", b"stuck", b'{"who": "stuck", "at": 2000, "how": ""}', 2_000)
        service.wait_for("decoding orders has run for")
        named = _named(service)
        assert (named["handler"], named["topic"], named["offset"]) == ("decoding orders", "orders", 1)
        assert "key" not in named
        assert "in key_of" in named["traceback"]
        assert ask(port, "/livez").json["handler"] == "decoding orders"
        service.signal(signal.SIGTERM)
        assert service.ended() == 1
    log.close()


def test_a_handler_counts_as_stuck_after_a_minute_whatever_the_warning(monkeypatch) -> None:
    monkeypatch.setattr(handler_watch, "STUCK_S", 0.2)
    found = AtWork("Shop.sold", "a", 0, "sales", 7)
    with HandlerWatch("shop", 3_600.0, 1.0, 0.01) as watch:
        watch.begin(lambda: found)
        wait_until(lambda: watch.stuck is not None, "it counts as stuck")
        stuck = watch.stuck
        assert stuck is not None
        assert stuck[0] == found.fields()
        assert time.monotonic() - stuck[1] >= 0.2
        assert watch.seconds["Shop.sold"] >= 0.2
        watch.begin(lambda: None)
        wait_until(lambda: watch.stuck is None, "it has returned")
