"""A handler that calls the network: refused in a harness and a replay, warned of once in a service."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import HandlerError
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicSettings
from tailrace.testing import Harness
from tests.cli.commands import run
from tests.processes.calling import Order, Shop, app, ask, orders

CALLING = "tests.processes.calling:app"


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("how", ["connect", "look up", "datagram"])
def test_a_harness_refuses_a_call_of_a_handler_and_names_it(port: int, how: str) -> None:
    with Harness(app) as h:
        h.send(orders, Order("a"))
        with pytest.raises(
            HandlerError, match=r"Shop\.ordered \(.*calling\.py:\d+\) calls the network: socket\."
        ):
            h.send(orders, Order("a", port, how))
        ask(port)  # a test itself may


@pytest.mark.parametrize("how", ["log", "thread"])
def test_what_sends_a_log_and_what_another_thread_does_is_not_seen(port: int, how: str) -> None:
    with Harness(app) as h:
        h.send(orders, Order("a", port, how))
        state = h.state(Shop, "a")
        assert state is not None
        assert state.asked == 1


def test_a_service_says_it_once_and_goes_on_and_a_replay_and_a_rebuild_do_what_they_should(
    port: int, tmp_path: Path
) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("orders", TopicSettings(1))
    writer = log.writer("test")
    writer.append([Output("orders", b"a", msgspec.json.encode(Order("a", port)), 0) for _ in range(3)])
    writer.commit()
    log.close()
    command = ("run", CALLING, "--log", tmp_path / "log", "--state", tmp_path / "state", "--until-end")
    ran = subprocess.run(
        [sys.executable, "-m", "tailrace", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("calls the network: socket.getaddrinfo '127.0.0.1'") == 1, ran.stderr
    assert '"level":"warning"' in ran.stderr
    replayed = run("replay", CALLING, "--log", tmp_path / "log")
    assert replayed.code != 0
    assert "calls the network" in replayed.err
    rebuilt = run(
        "rebuild", CALLING, "--log", tmp_path / "log", "--to", tmp_path / "snapshots", "--workers", 1
    )
    assert rebuilt.code == 0, rebuilt.err
