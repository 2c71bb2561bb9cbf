"""``tailrace serve`` as a process: beside a service and after its death, and what it refuses at its start."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
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


STUCK = """
import sys, threading
from tailrace.cli.main import main
from tailrace.serve import followers, process
process.LEAVE_MOST_S = 1.0
def never_closes(self): threading.Event().wait()
followers.Followers.close = never_closes
main()
"""
UNHEARD = """
import signal, sys, threading
from tailrace.cli.main import main
def strike():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # the main thread sleeps on
threading.Thread(target=strike, daemon=True).start()
main()
"""


@contextmanager
def scripted(script: str, folder: Path) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """A process with a ``tailrace serve`` that answers, and the file with what it writes."""
    command = [
        sys.executable,
        "-c",
        script,
        "serve",
        DEPOT,
        "--log",
        str(stocked(folder)),
        "--http",
        "127.0.0.1:0",
    ]
    words = folder / "words.txt"
    with (
        words.open("wb") as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said) as process,
    ):
        try:
            wait_until(lambda: b"answering" in words.read_bytes(), "it answers")
            yield process, words
        finally:
            process.kill()


def test_it_ends_although_a_client_cannot_be_closed_and_shows_where_it_hangs(tmp_path: Path) -> None:
    with scripted(STUCK, tmp_path) as (process, words):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    assert "never_closes" in words.read_text("utf-8")


def test_a_signal_that_does_not_wake_the_main_thread_ends_it(tmp_path: Path) -> None:
    with scripted(UNHEARD, tmp_path) as (process, _):
        assert process.stdin is not None
        process.stdin.write(b"now\n")
        process.stdin.flush()
        assert process.wait(60) == 0


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
