"""What ``tailrace migrate`` reports, of one app and of several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import SHOP, done, run

COPY = f"{SHOP}@copy"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log on which the shop and a copy of it have run."""
    done("log", "create", "--app", SHOP, "--log", tmp_path / "old")
    for app in (SHOP, COPY):
        done(
            "run",
            app,
            "--log",
            tmp_path / "old",
            "--state",
            tmp_path / "state",
            "--until-end",
            "--create-topics",
        )
    return tmp_path


@pytest.mark.parametrize(
    ("apps", "names", "has", "was", "it"),
    [([SHOP], "shop", "has", "was", "it"), ([SHOP, COPY], "shop and copy", "have", "were", "them")],
)
def test_the_report_names_the_apps_in_the_right_number(
    folder: Path, apps: list[str], names: str, has: str, was: str, it: str
) -> None:
    moving = ("migrate", "--from", folder / "old", "--to", folder / "new")
    arguments = [*moving, *(part for app in apps for part in ("--app", app))]
    assert f"prepared: {names} still live" in done(*arguments, "--prepare").out
    assert f"moved {names}: run {it} with --log " in done(*arguments, "--check").out
    assert f"{names} {was} moved to " in done(*arguments, "--check").out
    done("run", SHOP, "--log", folder / "new", "--state", folder / "state", "--until-end")
    assert f"{names} {has} run there since" in done(*arguments, "--check").out


def test_a_missing_option_is_named(tmp_path: Path) -> None:
    ended = run("migrate", "--from", tmp_path / "old", "--app", SHOP)
    assert ended.code == 2
    assert "Missing option '--to'" in ended.err
