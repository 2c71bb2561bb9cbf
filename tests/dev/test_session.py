"""`tailrace dev`: the state outlives changes, kills and mistakes, and what is wrong is said on the page and in the terminal."""

from __future__ import annotations

import os
import py_compile
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.dev.session import OTHER_HISTORY
from tailrace.projects.project import write_project
from tailrace.serve.page.dev import DIFFERENT, EQUAL
from tests.dev.developing import RUNS, Browser, Session, command
from tests.kafka.broker.cluster import free_ports
from tests.runtime.processes import wait_until

ORDERS = 12
MOST_RESTART_S = 20.0
"""Ten times the target, as the machines of tests are shared."""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(tmp_path) as one:
        one.until(lambda: one.said().count(RUNS) == 4, "the tasks run")
        one.until(lambda: one.ask("/readyz"), "the page answers")
        yield one


def place(session: Session, first: int, count: int) -> None:
    """Orders, of which every third is paid."""
    now_ms = time.time_ns() // 1_000_000
    lines = [
        {"type": "Placed", "order": f"o{n}", "at_ms": now_ms, "customer": "ada", "cents": n}
        for n in range(first, first + count)
    ]
    lines += [{"type": "Paid", "order": f"o{n}", "at_ms": now_ms} for n in range(first, first + count, 3)]
    session.append("order-events", lines)


def place_when_it_runs(session: Session) -> None:
    session.until(lambda: session.said().count(RUNS) == 4, "the tasks run")
    place(session, 0, ORDERS)
    check_orders(session, ORDERS)


def check_orders(session: Session, count: int) -> None:
    """The table is what plain Python finds, and no output is repeated."""
    due = {f"o{n}": (["placed"] if n % 3 else ["placed", "paid"], {n}) for n in range(count)}

    def found() -> dict[str, tuple[list[str], set[int]]]:
        outputs = defaultdict[str, tuple[list[str], set[int]]](lambda: ([], set()))
        for one in session.dumped("orders"):
            statuses, cents = outputs[one["value"]["order"]]
            statuses.append(one["value"]["status"])
            cents.add(one["value"]["cents"])
        return outputs

    wait_until(lambda: len(session.dumped("orders")) >= count + len(range(0, count, 3)), "all are handled")
    assert found() == due


def test_a_change_is_in_use_soon_and_keeps_the_state(session: Session) -> None:
    place(session, 0, ORDERS)
    check_orders(session, ORDERS)
    begun_s = time.monotonic()
    session.change(
        "    @tr.query\n", "    @tr.query\n    def half(self) -> int:\n        return 21\n\n    @tr.query\n"
    )
    session.until(lambda: "'result': 21" in str(session.ask("/actors/Order/o1/half")), "the new code answers")
    assert time.monotonic() - begun_s < MOST_RESTART_S
    assert session.ask("/actors/Order/o1/status")["result"] == "placed"
    (session.project / "tests" / "send.py").write_text("1 / 0\n")  # no module of the app
    place(session, ORDERS, ORDERS)
    check_orders(session, 2 * ORDERS)
    assert session.said().count("the code has changed") == 1


def test_ctrl_c_leaves_a_log_and_a_state_that_run_goes_on_with(session: Session) -> None:
    place(session, 0, ORDERS)
    assert session.stop() == 0
    wait_until(lambda: not session.processes(), "no process is left")
    place(session, ORDERS, ORDERS)
    done = command(session.project, "run", "shop:app", "--until-end")
    assert done.returncode == 0, done.stderr
    check_orders(session, 2 * ORDERS)
    assert "differences: none" in command(session.project, "replay", "shop:app", "--compare").stdout


def test_code_that_cannot_be_imported_stops_nothing(session: Session) -> None:
    good = session.source.read_text()
    session.source.write_text(good + "\nwrong = (\n")
    session.until(lambda: "The changed code is not in use: the module 'shop'" in session.said(), "it is said")
    assert "was never closed" in session.ask("/")
    session.source.write_text(good)
    session.until(lambda: 'role="alert"' not in (session.ask("/") or 'role="alert"'), "it is well again")
    place(session, 0, ORDERS)
    check_orders(session, ORDERS)


def test_a_state_that_does_not_fit_is_said_with_what_helps(session: Session) -> None:
    place(session, 0, ORDERS)
    check_orders(session, ORDERS)
    session.change("given_up: bool = False", "given_up: int = 0")
    says = "stored 'bool', declared 'int'). Keep the type, or store the new field under another name (name=)."
    session.until(lambda: says in session.said(), "the terminal says it")
    session.until(lambda: OTHER_HISTORY[:30] in (session.ask("/") or ""), "the page says it")
    assert session.post("/dev/kill", origin=session.url) == 500
    session.change("given_up: int = 0", "given_up: bool = False")
    session.until(lambda: 'role="alert"' not in (session.ask("/") or 'role="alert"'), "it is well again")
    place(session, ORDERS, ORDERS)
    check_orders(session, 2 * ORDERS)


def test_a_handler_that_fails_waits_for_its_correction(session: Session) -> None:
    session.change(
        "        self.publish(ctx)\n\n    @tr.on", "        1 / 0\n        self.publish(ctx)\n\n    @tr.on"
    )
    session.until(lambda: session.said().count(RUNS) == 8, "it runs with the mistake")
    place(session, 0, ORDERS)
    session.until(lambda: "ZeroDivisionError" in (session.ask("/") or ""), "the page says it")
    session.change("        1 / 0\n", "")
    check_orders(session, ORDERS)


def test_kill_and_replay_in_a_browser_and_no_event_is_lost_or_repeated(
    session: Session, tmp_path: Path
) -> None:
    place(session, 0, ORDERS)
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"{session.url}/")
        browser.click("Kill worker")
        place(session, ORDERS, ORDERS)
        text = "document.querySelector('[role=status]')?.textContent ?? ''"
        wait_until(lambda: "killed with SIGKILL" in browser.run(text), "the page says what came of it")
        check_orders(session, 2 * ORDERS)
        browser.click("Replay")
        wait_until(lambda: EQUAL in browser.run(text), "the page says what came of it")
        records = re.search(r"([\d,]+) records", browser.run(text))
        assert records is not None
        assert int(records[1]) == 2 * (ORDERS + ORDERS // 3)
        assert "was ended by SIGKILL: starting it again" in session.said()
        session.change("PAY_WITHIN_MS = 30", "PAY_WITHIN_MS = -30")
        session.until(lambda: session.said().count("answering") == 2, "the new code is in use")
        browser.open(f"{session.url}/")
        browser.click("Replay")
        wait_until(lambda: DIFFERENT in browser.run(text), "the new code would have cancelled what was paid")


def test_only_the_page_itself_can_kill(session: Session) -> None:
    assert session.post("/dev/kill") == 403
    assert session.post("/dev/kill", origin="http://evil.example") == 403
    assert session.post("/dev/replay", origin="null") == 403
    assert session.post("/dev/other", origin=session.url) == 404
    assert "SIGKILL" not in session.said()


def test_worker_and_page_leave_if_the_session_is_killed(session: Session) -> None:
    assert len(session.processes()) >= 3
    session.process.kill()
    session.process.wait()
    wait_until(lambda: not session.processes(), "all have left")
    assert "left" in session.said()


def test_options_of_run_reach_the_worker(tmp_path: Path) -> None:
    with Session(tmp_path, "--no-such-option") as session:
        assert session.process.wait() == 2
        assert "No such option: --no-such-option" in session.said()
    with Session(tmp_path) as session:
        place_when_it_runs(session)
        session.change("given_up", "gone")
        session.until(
            lambda: "To delete the values: --drop-state Order.given_up." in session.said(), "it is said"
        )
    with Session(tmp_path, "--drop-state", "Order.given_up") as session:
        session.until(lambda: session.said().count(RUNS) == 4, "the tasks run")
        assert "To delete the values" not in session.said()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["shop:app", "--http", "0.0.0.0:8080"], "can be reached from other machines"),
        (["shop:none"], "the module 'shop' has no 'none'"),
        (["nothing:app"], "there is no module 'nothing'"),
        (["shop:app", "--log", "kafka://localhost:9092"], "works with the embedded log only"),
    ],
)
def test_what_cannot_be_run_is_a_sentence(arguments: list[str], says: str, tmp_path: Path) -> None:
    write_project(tmp_path / "shop", "service")
    done = command(tmp_path / "shop", "dev", "--http", f"127.0.0.1:{free_ports(1)[0]}", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_code_that_misses_a_module_is_in_use_when_the_module_is_there(session: Session) -> None:
    session.change("import tailrace as tr\n", "import tailrace as tr\nimport words\n")
    session.until(lambda: "No module named 'words'" in session.said(), "it is said")
    session.source.with_name("words.py").write_text("WORD = 1\n")
    session.until(lambda: session.said().count(RUNS) == 8, "it runs with the new module")
    session.source.with_name("words.py").write_text("WORD = 2\n")
    session.until(lambda: session.said().count(RUNS) == 12, "the new module is a file of the app")


def test_a_change_that_compiled_code_hides_is_in_use(session: Session) -> None:
    """Python knows compiled code by second and size of its source."""
    text = session.source.read_text()
    session.until(lambda: session.ask("/actors/Order/none") is not None, "the page answers")
    for number in (1, 2):
        source = text.replace(
            "    @tr.query\n",
            f"    @tr.query\n    def v{number}(self) -> int:\n        return 1\n\n    @tr.query\n",
            1,
        )
        session.source.write_text(source)
        os.utime(session.source, (1_700_000_000, 1_700_000_000 + number / 10))
        if number == 1:
            compiled = py_compile.compile(str(session.source))
            assert compiled is not None
    session.until(lambda: "/v2" in str(session.ask("/openapi.json")), "the new code is in use")


def test_a_module_that_only_a_handler_imports_is_watched_wherever_it_is(
    session: Session, tmp_path: Path
) -> None:
    folder = session.project / "rules" / "deep"
    folder.mkdir(parents=True)
    (folder / "late.py").write_text("TEXT = 1\n")
    session.until(lambda: session.said().count(RUNS) == 8, "it is seen")
    (tmp_path / "elsewhere.py").write_text("TEXT = 1\n")
    session.change(
        "import tailrace as tr\n",
        f"import sys\nimport tailrace as tr\nsys.path.append({str(tmp_path)!r})\nimport elsewhere\n",
    )
    session.until(lambda: session.said().count(RUNS) == 12, "it runs with the module")
    (tmp_path / "elsewhere.py").write_text("TEXT = 2\n")
    session.until(lambda: session.said().count(RUNS) == 16, "a module outside is watched")


def test_a_change_while_the_code_is_looked_at_is_not_missed(session: Session) -> None:
    session.change("import tailrace as tr\n", "import time\nimport tailrace as tr\ntime.sleep(2)\n")
    session.until(lambda: "has changed" in session.said(), "the slow code is in use")
    session.until(lambda: session.said().count(RUNS) == 8, "it runs")
    session.change("PAY_WITHIN_MS = 30", "PAY_WITHIN_MS = 31")
    time.sleep(0.5)  # within the look
    session.change(
        "    @tr.query\n", "    @tr.query\n    def later(self) -> int:\n        return 1\n\n    @tr.query\n"
    )
    session.until(lambda: "/later" in str(session.ask("/openapi.json")), "the page has the last code")
    session.until(
        lambda: session.said().count("has changed") == 3, "the second change is a restart of its own"
    )


def test_a_worker_that_is_killed_beside_wrong_code_is_not_started_with_it(session: Session) -> None:
    place(session, 0, ORDERS)
    check_orders(session, ORDERS)
    session.change("import tailrace as tr\n", "import tailrace as tr\n1 / 0\n")
    session.until(lambda: "not in use" in session.said(), "it is said")
    session.post("/dev/kill", origin=session.url)
    session.until(lambda: session.said().count("not in use") == 2, "it is said again")
    assert "ZeroDivisionError" in session.ask("/")
    session.change("1 / 0\n", "")
    place(session, ORDERS, ORDERS)
    check_orders(session, 2 * ORDERS)


def test_kill_answers_with_several_workers(tmp_path: Path) -> None:
    with Session(tmp_path, "--workers", "2") as session:
        session.until(lambda: session.said().count(RUNS) == 4, "the tasks run")
        session.until(lambda: session.ask("/readyz"), "the page answers")
        assert session.post("/dev/kill", origin=session.url) == 200
        assert "has resumed from the last commit" in session.ask("/")


def test_port_0_is_a_free_one_and_the_table_is_named(tmp_path: Path) -> None:
    with Session(tmp_path, "--http", "127.0.0.1:0") as session:
        session.until(lambda: session.said().count(RUNS) == 4, "the tasks run")
        found = re.findall(r"curl http://127.0.0.1:(\d+)/(\w+)/", session.said())
        assert [path for _, path in found] == ["actors", "tables"]
        assert int(found[0][0]) > 0


def test_a_port_that_is_taken_is_a_sentence(session: Session) -> None:
    done = command(session.project, "dev", "shop:app", "--http", session.url[7:])
    assert done.returncode == 2
    assert "nothing can listen on 127.0.0.1" in done.stderr
    os.kill(session.process.pid, signal.SIGTERM)
    assert session.process.wait() == 0
