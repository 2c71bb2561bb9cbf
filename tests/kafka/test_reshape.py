"""``tailrace reshape`` between the embedded log and Kafka, as an operator uses it; one run of it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.log.opening import open_log
from tests.cli.commands import done
from tests.docs.page import ROOT
from tests.history.depots import drawn, expected, found, outputs

pytestmark = pytest.mark.usefixtures("quiet_logs")
EVENTS = drawn(Random(2), 0, 180)
APP = "tests.history.depots:of_"


def live(folder: Path, log: object, partitions: int, events: list[tuple[str, Any]], *options: str) -> None:
    """Feed events, and run the app to the end of the log."""
    with closing(open_log(str(log))) as opened:
        opened.append_all(outputs(events))
    done(
        "run",
        f"{APP}{partitions}",
        *options,
        "--log",
        log,
        "--state",
        folder / f"state{partitions}{len(str(log))}",
    )


def test_an_app_continues_on_kafka_with_fewer_partitions_and_back_with_more(
    kafka_url: str, tmp_path: Path
) -> None:
    old, new = tmp_path / "log", tmp_path / "new"
    done("topics", "apply", "--app", f"{APP}3", "--log", old)
    live(tmp_path, old, 3, EVENTS[:60], "--until-end")
    with closing(open_log(str(old))) as log:
        log.append_all(outputs(EVENTS[60:90]))  # which it has not read
    arguments = ["reshape", f"{APP}3", "--partitions", "2", "--log", old, "--to", kafka_url]
    arguments += ["--snapshots", tmp_path / "snapshots"]
    command = [sys.executable, "-m", "tests.kafka.killed_move", "topic", *map(str, arguments)]
    killed = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "begins on kafka://" in done(*arguments).out
    live(tmp_path, kafka_url, 2, EVENTS[90:120], "--until-end")
    done(
        "reshape",
        f"{APP}2",
        "--partitions",
        "5",
        "--log",
        kafka_url,
        "--to",
        new,
        "--snapshots",
        tmp_path / "more",
    )
    live(tmp_path, new, 5, EVENTS[120:], "--end-of-input")
    with closing(open_log(str(new))) as log:
        assert found(log) == expected(EVENTS)
    done("replay", f"{APP}5", "--log", new)
