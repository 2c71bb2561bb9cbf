"""What a service says of itself when it starts: writers of its topics that nobody runs."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.history.status.holding import IsOwned
from tailrace.log import Log
from tailrace.log.opening import open_log
from tailrace.processes.app_loading import find_app
from tailrace.runtime import preparing
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import announce
from tests.cli.commands import SHOP, done
from tests.log.embedded.owning import owning
from tests.runtime.joining import Service, billing_app, joining_app


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "tailrace.service")
    return lambda: [
        (one.levelname, one.getMessage()) for one in caplog.records if one.name == "tailrace.service"
    ]


def renamed(name: str) -> tr.App:
    return billing_app().renamed(name)


def test_writers_of_its_topics_that_nobody_runs_are_named_with_the_way_to_retire_them(said) -> None:
    old = Service(billing_app())
    old.run("orders", 2_000)
    plan = renamed("billing-2").plan()
    announce(plan, old.log, lambda publisher: publisher == "billing-0")
    assert said() == [], "it runs"
    announce(plan, old.log, lambda _: False)
    assert said() == [
        (
            "WARNING",
            (
                "'bills' is also written by the app 'billing', which is not running: readers that follow the "
                "topic wait for it at "
                "1970-01-01T00:00:01.999Z. If it will not run again, retire it: tailrace retire billing"
            ),
        )
    ]


def test_an_app_that_writes_other_topics_or_holds_nobody_is_not_named(said) -> None:
    old = Service(billing_app())
    old.run("orders", 2_000)
    announce(joining_app().plan(), old.log, lambda _: False)
    old.run("orders", after_ms=60_000)
    announce(renamed("billing-2").plan(), old.log, lambda _: False)
    announce(billing_app().plan(), old.log, lambda _: False)
    assert said() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_says_it_once_whatever_the_number_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet_logs: None, workers: int
) -> None:
    told: list[str] = []

    def counted(plan: Plan, log: Log, is_owned: IsOwned) -> None:
        told.append(f"{plan.app} {is_owned('shop-0')}")
        announce(plan, log, is_owned)

    monkeypatch.setattr(preparing, "announce", counted)
    where = ("--log", tmp_path / "log", "--state", tmp_path / "state", "--end-of-input", "--after-end")
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "log")
    done("run", SHOP, *where, "--workers", workers)
    assert told == ["shop False"]
    owner = owning(tmp_path / "log", "shop", [0])
    copy = ServiceOptions(f"{SHOP}@copy", tmp_path / "log", tmp_path / "state")
    with closing(open_log(copy.log)) as log:
        preparing.prepare(log, copy, find_app(copy.app).plan())
    assert told[1:] == ["copy True"]
    owner.close()
