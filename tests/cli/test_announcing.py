"""``tailrace run``: what a service says of itself when it starts is said by one of its processes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

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
