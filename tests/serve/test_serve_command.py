"""``tailrace serve`` as a process: beside a service and after its death, and what it refuses at its start."""

from __future__ import annotations

import signal
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.http.asking import ask
from tests.runtime.processes import Running, wait_until
from tests.serve.asking import Asked
from tests.serve.depot import DAY, Arrival, arrivals
from tests.serve.stocked import DEPOT, append, stocked


def port_of(server: Running) -> int:
    server.wait_for("answering")
    return next(int(one["port"]) for one in server.logged if "port" in one)


def test_it_answers_beside_a_service_and_after_its_death_and_ends_when_told(tmp_path: Path) -> None:
    log = stocked(tmp_path)
    where = ("--log", log, "--log-format", "json")
    with Running("serve", DEPOT, *where, "--http", "127.0.0.1:0", "--copy", tmp_path / "copy") as server:
        asked = Asked(port_of(server))
        asked.until_ready()
        with Running(
            "run", DEPOT, *where, "--state", tmp_path / "state", "--commit-interval", "20ms"
        ) as service:
            append(log, [(arrivals, Arrival("north", DAY + timedelta(hours=1), "zinc", 1.0))])
            wait_until(lambda: asked.ask("/actors/Depot/north/count").body["value"] == 3, "it is answered")
            service.signal(signal.SIGKILL)
            service.ended()
        said = asked.ask("/actors/Depot/north")
        assert said.body["fields"]["last"]["what"] == "zinc"
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    with Running("serve", DEPOT, *where, "--http", "127.0.0.1:0", "--copy", tmp_path / "copy") as server:
        asked = Asked(port_of(server))
        asked.until_ready()
        assert asked.ask("/actors/Depot/north/count").body["value"] == 3, "from its copy on disk"


def test_other_machines_are_answered_if_they_have_the_token(tmp_path: Path) -> None:
    log, token = stocked(tmp_path), tmp_path / "token"
    token.write_text("the-token-of-this-test\n")
    where = ("--log", log, "--http", "0.0.0.0:0", "--log-format", "json")
    with Running("serve", DEPOT, *where, "--http-token-file", token) as server:
        port = port_of(server)
        Asked(port).until_ready()  # which needs no token
        for path in ("/actors/Depot/north", "/openapi.json", "/"):
            assert ask(port, path, "the-token-of-another").status == 401
            assert ask(port, path, "the-token-of-this-test").status == 200
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--http", "0.0.0.0:0"], "can be reached from other machines"),
        (["--http", "8080"], "is no address"),
        (["--http", "127.0.0.1:99999"], "is no address"),
        (["--http-token-file", "/nowhere"], "/nowhere cannot be read"),
        (["--partition", "x"], "'x' is not a valid integer"),
        (["--partition", "2"], "has the partitions 0 to 1"),
        (["--log", "/nowhere"], "/nowhere"),
    ],
)
def test_a_wrong_start_is_refused_with_a_reason(tmp_path: Path, arguments: list[str], expected: str) -> None:
    ended = run("serve", DEPOT, "--http", "127.0.0.1:0", "--log", tmp_path, *arguments)
    assert ended.code != 0
    assert expected in ended.err


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = run("serve", DEPOT, "--http", f"127.0.0.1:{port}", "--log", stocked(tmp_path))
    assert ended.code == 2
    assert f"127.0.0.1 port {port}" in ended.err
