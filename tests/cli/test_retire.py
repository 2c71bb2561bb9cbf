"""``tailrace retire``: by name or by the app's code, with what it says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import SHOP, done, run
from tests.log.embedded.owning import owning


@pytest.fixture
def folder(tmp_path: Path, quiet_logs: None) -> Path:
    """Where the shop has run to the end of a purchase."""
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "log")
    purchase = b'{"customer": "ann", "at_ms": 1357017420000, "cents": 5}\n'
    done("log", "append", "purchases", "--app", SHOP, "--log", tmp_path / "log", stdin=purchase)
    done(
        "run", SHOP, "--log", tmp_path / "log", "--state", tmp_path / "state", "--end-of-input", "--after-end"
    )
    return tmp_path


def published(folder: Path) -> set[int | None]:
    log = EmbeddedLog(folder / "log", create=False)
    try:
        return {mark for (topic, _), mark in log.publications().items() if topic == "totals"}
    finally:
        log.close()


@pytest.mark.parametrize("name", ["shop", SHOP])
def test_it_says_what_it_has_retired(folder: Path, name: str) -> None:
    assert None not in published(folder)
    first, header, *rows = done("retire", name, "--log", folder / "log").out.splitlines()
    assert first == "retired 'shop': 3 tasks"
    assert header.split("  ")[0] == "topic"
    assert ["totals", "3"] in [row.split()[:2] for row in rows]
    assert published(folder) == {None}
    again = done("retire", name, "--log", folder / "log").out
    assert again.startswith("'shop' holds no reader back: it was retired before")


def test_json_names_publishers_and_topics(folder: Path) -> None:
    said = msgspec.json.decode(done("retire", "shop", "--json", "--log", folder / "log").out)
    assert (said["app"], said["publishers"]) == ("shop", ["shop-0", "shop-1", "shop-2"])
    (totals,) = [one for one in said["topics"] if one["topic"] == "totals"]
    assert set(totals) == {"topic", "publishers", "lowest_ms", "highest_ms"}
    assert totals["publishers"] == 3


def test_what_cannot_be_retired_is_refused_in_one_line(folder: Path) -> None:
    ended = run("retire", "shopp", "--log", folder / "log")
    assert ended.code == 2
    assert "Did you mean 'shop'?" in ended.err
    owner = owning(folder / "log", "shop", [2])
    ended = run("retire", "shop", "--log", folder / "log")
    owner.close()
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert "the app 'shop' runs" in line
    assert run("retire", "shop", "--log", folder / "nowhere").code == 1
