"""``tailrace upgrade --engine spark``: Spark rebuilds the state of the new version, which then takes over."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import UsageError
from tailrace.history.rebuilding.engines import Where
from tailrace.lab.upgrade.driver import Upgrading
from tests.lab.upgrade import stage


@pytest.mark.nightly
@pytest.mark.long
def test_spark_rebuilds_and_the_new_version_takes_over_under_production(tmp_path: Path) -> None:
    log, new = tmp_path / "log", stage.corrected(tmp_path)
    asked = msgspec.structs.replace(stage.wanted_in(tmp_path, new), where=Where("spark", "local[2,4]"))
    with ExitStack() as stack:
        producer = stack.enter_context(stage.Producer(log, batch=5))
        runs = stack.enter_context(stage.service(stage.OLD, log, tmp_path))
        runs.wait_for("a partition runs", times=2)
        refused = msgspec.structs.replace(asked, where=Where("spark", "sc://elsewhere"))
        with ExitStack() as ends, pytest.raises(UsageError, match="Spark Connect"):
            Upgrading(refused, ends).run()
        waits = stack.enter_context(stage.service(new, log, tmp_path))
        assert stage.command(asked)["order"] == "tape"
        assert runs.ended() == 1
        stage.await_outputs(log, len(producer.clicks))
        producer.stop()
        waits.signal(signal.SIGTERM)
        assert waits.ended() == 0
        with stage.service(new, log, tmp_path, "--end-of-input") as last:
            assert last.ended() == 0, last.complaint
    stage.check(log, producer.clicks, "on")
