"""What ``tailrace migrate`` reports, of one app and of several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import SHOP, done, run

COPY = f"{SHOP}@copy"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log on which the shop and a copy of it have run."""
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "old")
    for app in (SHOP, COPY):
        done(
            "run",
            app,
            "--log",
            tmp_path / "old",
            "--state",
            tmp_path / "state",
            "--end-of-input",
            "--after-end",
            "--create-topics",
        )
    return tmp_path


@pytest.mark.parametrize(
    ("apps", "names", "was", "it"),
    [([SHOP], "shop", "was", "it"), ([SHOP, COPY], "shop and copy", "were", "them")],
)
def test_the_report_names_the_apps_in_the_right_number(
    folder: Path, apps: list[str], names: str, was: str, it: str
) -> None:
    moving = ("migrate", "--from", folder / "old", "--to", folder / "new")
    arguments = [*moving, *(part for app in apps for part in ("--app", app))]
    EmbeddedLog(folder / "new").close()
    (given_up,) = done(*arguments, "--cancel", "--json").lines
    assert given_up == {"apps": names.split(" and "), "done": False, "given_up": True}
    assert f"moved {names}: run {it} with --log " in done(*arguments).out
    assert f"{names} {was} moved to " in done(*arguments).out


def test_a_missing_option_is_named(tmp_path: Path) -> None:
    ended = run("migrate", "--from", tmp_path / "old", "--app", SHOP)
    assert ended.code == 2
    assert "Missing option '--to'" in ended.err
