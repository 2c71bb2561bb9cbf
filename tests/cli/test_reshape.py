"""``tailrace reshape``: what it reports and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli import shop
from tests.cli.commands import SHOP, done, refused, run
from tests.cli.shop import Purchase


@pytest.fixture
def command(tmp_path: Path) -> list[Any]:
    """A log that the shop has run on, and the beginning of the command."""
    log = tmp_path / "log"
    done("topics", "apply", "--app", SHOP, "--log", log)
    lines = b"\n".join(shop.purchases.encode(Purchase(one, 1, 4)) for one in ("a", "B", "c"))
    done("log", "append", "purchases", "--app", SHOP, "--log", log, stdin=lines)
    done("run", SHOP, "--until-end", "--log", log, "--state", tmp_path / "state")
    return ["reshape", SHOP, "--log", log, "--to", tmp_path / "new", "--snapshots", tmp_path / "snapshots"]


def test_it_says_how_to_continue(command: list[Any]) -> None:
    assert "begins on" in done(*command, "--partitions", 2).out
    assert "the target has records in" in refused(*command, "--partitions", 4, code=1)


def test_the_same_number_of_partitions_is_refused(command: list[Any]) -> None:
    assert "has 3 partitions already" in refused(*command)


def test_fewer_partitions_than_workers_or_than_the_code_has_are_refused_in_a_sentence(
    command: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(*command, "--partitions", 1)
    source = Path(shop.__file__).read_text("utf-8")
    (tmp_path / "narrow.py").write_text(source.replace("partitions=3", "partitions=1"), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    where = ("--until-end", "--log", tmp_path / "new", "--state", tmp_path / "new-state")
    assert "has 1 partitions, so at most 1 workers" in refused("run", "narrow:app", *where, "--workers", 2)
    ended = run("run", SHOP, *where)
    assert ended.code == 1
    assert "partition" in ended.err.splitlines()[-1], ended.err
    done("run", "narrow:app", *where)
    for key in "aBc":
        assert (
            done("get", "narrow:app", "Customer", key, "cents", "--log", tmp_path / "new").out.split()[-1]
            == "4"
        )


def test_a_rebuild_in_stages_does_not_undo_what_only_the_snapshot_has(
    command: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(*command, "--partitions", 2)
    source = Path(shop.__file__).read_text("utf-8").replace("partitions=3", "partitions=2")
    (tmp_path / "halved.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    new, state, uri = tmp_path / "new", tmp_path / "new-state", tmp_path / "rebuilt"
    more = shop.purchases.encode(Purchase("a", 2, 5))
    done("log", "append", "purchases", "--app", "halved:app", "--log", new, stdin=more)
    done("run", "halved:app", "--until-end", "--log", new, "--state", state)
    newer = source.replace('tr.App("shop",', 'tr.App("shop", version="2",')
    assert newer != source
    (tmp_path / "newer.py").write_text(newer, "utf-8")
    upgrade = [
        f"{tmp_path / 'halved.py'}:app",
        "--to",
        f"{tmp_path / 'newer.py'}:app",
        "--snapshots",
        tmp_path / "up",
    ]
    rebuild = ["rebuild", "newer:app", "--log", new, "--to", uri, "--order", "stages", "--workers", 1]
    for one in (
        rebuild,
        [*rebuild, "--plan"],
        ["upgrade", *upgrade, "--log", new, "--plan"],
        ["upgrade", *upgrade, "--log", new],
    ):
        ended = run(*one)
        assert (ended.code, "which was edited or reshaped" in ended.err) == (1, True), ended.err
    assert "shop.upgrades" not in done("log", "list", "--log", new).out
    base = ended.err.split("--from-snapshot ")[1].split(")")[0]
    done(*rebuild, "--from-snapshot", base)
    run_newer = ["run", "newer:app", "--until-end", "--log", new, "--state", state]
    done(*run_newer, "--from-snapshot", uri, "--replace-state")
    wanted = {"a": 9, "B": 4, "c": 4}
    for key, cents in wanted.items():
        assert done("get", "newer:app", "Customer", key, "cents", "--log", new).out.split()[-1] == str(cents)
    ended = run(*rebuild)  # still: the state that it now begins with rests upon the reshaped one
    assert (ended.code, base in ended.err) == (1, True), ended.err
