"""Dead letters are redriven from the page: once each, by who is known, and by a form of the page itself."""

from __future__ import annotations

from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.history.dead_letters.letters import DeadLetter
from tailrace.history.dead_letters.redriving import last_open_letters
from tailrace.http.listening import Listen
from tailrace.log.interface import ServiceLog
from tailrace.log.opening import open_log
from tailrace.serve.page import page as page_module
from tests.cli.commands import done
from tests.serve import clerk
from tests.serve.asking import Asked, serving
from tests.serve.clerk import CLERK, Order, orders

TOKEN = "a-token-of-some-length"
AMOUNTS = [5, 13, 7, 13, 11]


def run_on(folder: Path) -> None:
    done(
        "run",
        CLERK,
        "--log",
        folder / "log",
        "--state",
        folder / "state",
        "--until-end",
        "--allow-dead-letters",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two of five events are dead letters."""
    done("topics", "apply", "--app", CLERK, "--log", tmp_path / "log")
    log = open_log(tmp_path / "log")
    events = [Order("ann", amount, 1_000 * at) for at, amount in enumerate(AMOUNTS)]
    log.append_all([Output(orders.name, b"ann", orders.encode(one), one.at) for one in events])
    log.close()
    run_on(tmp_path)
    return tmp_path


def redriven(server: Asked, id_: str, origin: str = "", **headers: str) -> int:
    headers |= {"origin": origin} if origin else {}
    return server.ask(f"/dead-letters/redrive?id={id_}", "POST", **headers).status


def test_a_letter_is_redriven_once_by_who_has_the_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"authorization": f"Basic {b64encode(f'anyone:{TOKEN}'.encode()).decode()}"}
    with serving(folder / "log", (0,), CLERK, Listen("127.0.0.1", 0, TOKEN)) as server:
        refusal = server.ask("/dead-letters")
        assert refusal.status == 401
        assert "Basic" in refusal.headers["www-authenticate"], "a browser asks for a password"
        page = server.ask("/dead-letters", **known).body.decode()
        assert page.count("<button>Redrive") == 2
        policy = server.ask("/dead-letters", **known).headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy, "a frame of another page could move a click to the button"
        assert "/dead-letters/redrive?id=0-0" in page
        assert redriven(server, "0-0", "http://localhost") == 401
        assert redriven(server, "0-0", **known) == 403, "a form of another page"
        assert redriven(server, "0-0", "http://evil.example", **known) == 403
        assert redriven(server, "0-0", "ftp://localhost", **known) == 403
        assert redriven(server, "0-0", "http://localhost", **known) == 303
        assert redriven(server, "0-0", "http://localhost", **known) == 409, "once"
        assert redriven(server, "0-7", "http://localhost", **known) == 409
        assert redriven(server, "%3Cscript%3E", "http://localhost", **known) == 409
        assert server.ask("/dead-letters/redrive?id=0-1", **known).status == 405
        page = server.ask("/dead-letters?redriven=0-0", **known).body.decode()
        assert page.count("<button>Redrive") == 1
        assert "0-0 was redriven" in page
    monkeypatch.setattr(clerk, "refused", set[int]())
    run_on(folder)
    (said,) = done("get", CLERK, "Customer", "ann", "total", "--json", "--log", folder / "log").lines
    assert said["value"] == sum(AMOUNTS) - 13


def test_who_looks_at_letters_often_reads_few_of_them_and_seldom(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def noted(log: ServiceLog, app: str, most: int) -> list[DeadLetter]:
        reads.append(most)
        return last_open_letters(log, app, most)

    monkeypatch.setattr(page_module, "last_open_letters", noted)
    monkeypatch.setattr(page_module, "_FRESH_S", 600.0)
    with serving(folder / "log", (0,), CLERK) as server, ThreadPoolExecutor(8) as pool:
        shown = {*pool.map(lambda _: server.ask("/dead-letters").status, range(20))}
    assert (shown, reads) == ({200}, [50])


def test_without_a_token_nothing_is_redriven(folder: Path) -> None:
    with serving(folder / "log", (0,), CLERK) as server:
        assert "<button>Redrive" not in server.ask("/dead-letters").body.decode()
        assert redriven(server, "0-0", "http://localhost") == 403
