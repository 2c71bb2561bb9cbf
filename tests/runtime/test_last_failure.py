"""The failure that ended a process is shown by ``tailrace status`` until its task commits again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.status.last_failure import LastFailure, last_failure
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicSettings
from tests.cli.commands import done
from tests.runtime.measured import Sale
from tests.runtime.processes import Running

APP = "tests.runtime.stopping:app"
SALES = [Sale("a", 1_000, 1.0), Sale("a", 2_000, 2.0), Sale("b", 2_000, 4.0), Sale("a", 3_000, -7.0)]


def status(log: object) -> Any:
    return msgspec.json.decode(done("status", APP, "--log", log, "--json").out)


def ended(log: object, state: Path, *more: object, corrected: bool = False) -> int:
    environment = {"TEST_CORRECTED": "1"} if corrected else {}
    where = ("--log", log, "--state", state, "--create-topics", "--log-format", "json")
    with Running("run", APP, *where, *more, environment=environment) as running:
        return running.ended()


def scene(log: object, state: Path, *workers: object) -> None:
    """A service that stops at a bad event, and is started again with the code corrected."""
    assert ended(log, state, "--until-end", *workers) == 0
    assert status(log)["last_failure"] is None
    lines = b"\n".join(msgspec.json.encode(one) for one in SALES)
    done("log", "append", "sales", "--app", APP, "--log", log, stdin=lines)
    before_ms = time.time_ns() // 1_000_000
    assert ended(log, state, "--until-end", *workers) == 1
    said = status(log)["last_failure"]
    assert before_ms <= said.pop("at_ms") <= time.time_ns() // 1_000_000
    number = partition_of(b"a", 2)
    offset = sum(partition_of(one.shop.encode(), 2) == number for one in SALES) - 1
    assert said == {
        "error": "Shop.sold failed with ValueError: a negative amount: -7.0",
        "partition": number,
        "actor": "Shop",
        "handler": "Shop.sold",
        "topic": "sales",
        "offset": offset,
        "key": "a",
    }
    text = " ".join(done("status", APP, "--log", log).out.split())
    assert f"ValueError: a negative amount: -7.0 (partition {number}, actor Shop, handler Shop.sold" in text
    assert ended(log, state, "--until-end", *workers, corrected=True) == 0
    assert status(log)["last_failure"] is None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_is_shown_until_its_task_commits_again(tmp_path: Path, workers: int) -> None:
    scene(tmp_path / "log", tmp_path / "state", "--workers", workers)


def test_it_is_over_when_its_own_task_has_committed_and_without_a_task_when_all_have(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    assert last_failure(log, "shop", [(0, None)]) is None
    log.create_topic("shop.last-failure", TopicSettings(1, compacted=True))

    def note(one: LastFailure) -> None:
        log.append_all([Output("shop.last-failure", b"last", msgspec.json.encode(one), 0)], 0)

    note(LastFailure(9, "before"))
    one = LastFailure(10, "x", partition=1)
    note(one)
    assert last_failure(log, "shop", [(0, 99), (1, 10)]) == one
    assert last_failure(log, "shop", [(0, 99), (1, None)]) == one
    assert last_failure(log, "shop", [(0, None), (1, 11)]) is None
    one = LastFailure(20, "y")
    note(one)
    assert last_failure(log, "shop", [(0, 99), (1, 20)]) == one
    assert last_failure(log, "shop", [(0, 21), (1, 21)]) is None
    log.append_all([Output("shop.last-failure", b"last", b"not of ours", 0)], 0)
    assert last_failure(log, "shop", [(0, 0)]) is None
    log.close()
