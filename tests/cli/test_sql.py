"""``tailrace sql``: what it prints of a log, a snapshot and a time, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import shop
from tests.cli.commands import SHOP, done, run
from tests.cli.shop import Purchase

QUERY = "select key, cents from Customer order by key"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that the shop has run on."""
    folder = tmp_path_factory.mktemp("shop")
    done("topics", "apply", "--app", SHOP, "--log", folder / "log")
    lines = b"\n".join(
        map(shop.purchases.encode, [Purchase("a", 1, 4), Purchase("b", 2, 5), Purchase("a", 3, 6)])
    )
    done("log", "append", "purchases", "--app", SHOP, "--log", folder / "log", stdin=lines)
    run("run", SHOP, "--until-end", "--log", folder / "log", "--state", folder / "state")
    return folder


def test_it_asks_the_log_a_snapshot_and_a_time(place: Path) -> None:
    ask = ("sql", SHOP, QUERY, "--log", place / "log")
    assert done(*ask).out == "key\tcents\na\t10\nb\t5\n"
    done("snapshot", "create", SHOP, "--log", place / "log", "--snapshots", place / "snaps", "--name", "now")
    assert done(*ask, "--snapshot", f"{place}/snaps#now").out == "key\tcents\na\t10\nb\t5\n"
    none = QUERY.replace("Customer", "Customer where false")
    assert none != QUERY
    assert done("sql", SHOP, none, "--log", place / "log").out == "key\tcents\n"
    assert done("sql", SHOP, none, "--log", place / "log", "--json").out == ""
    lines = done(*ask, "--json").out.splitlines()
    assert [json.loads(one) for one in lines] == [{"key": "a", "cents": 10}, {"key": "b", "cents": 5}]
    then = done(*ask, "--as-of", "2ms", "--workers", 1)
    assert then.out == "key\tcents\na\t4\nb\t5\n"
    assert "note: as of 1970-01-01T00:00:00.002Z" in then.err
    topic = done("sql", SHOP, "select count(*) from purchases", "--log", place / "log", "--json").out
    assert list(json.loads(topic).values()) == [3]


def test_what_is_wrong_is_said(place: Path) -> None:
    ended = run("sql", SHOP, "select nothing from Customer", "--log", place / "log")
    assert (ended.code, ended.out) == (2, "")
    assert "the query fails: " in ended.err
    ended = run("sql", SHOP, "from purchases", "--log", place / "log", "--as-of", "1ms")
    assert ended.code == 2
    assert (
        "'purchases', which is no table here. With --snapshot and --as-of there are states only" in ended.err
    )
    ended = run("sql", SHOP, QUERY, "--snapshot", "x", "--as-of", "2026-01-01", "--log", place / "log")
    assert "one of --snapshot and --as-of" in ended.err


def test_controls_of_a_terminal_are_escaped(place: Path) -> None:
    query = "select 'x' || chr(27) || '[31m' || chr(155) || chr(10) as text"
    assert done("sql", SHOP, query, "--log", place / "log").out == "text\nx\\x1b[31m\\x9b\\n\n"
    named = done("sql", SHOP, 'select 1 as "n\x1b[31m"', "--log", place / "log").out
    assert named == "n\\x1b[31m\n1\n"
    line = done("sql", SHOP, query, "--log", place / "log", "--json").out
    assert line.rstrip("\n").isprintable()
    assert json.loads(line) == {"text": "x\x1b[31m\x9b\n"}
