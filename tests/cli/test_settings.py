"""Settings: the command line comes before the environment, that before the default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tailrace.cli.main import tailrace
from tailrace.cli.script import run_app
from tailrace.cli.settings import Setting
from tests.cli import shop
from tests.cli.commands import SHOP, done, refused, run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with three logs, each with a topic of its name."""
    for name in ("typed", "environment"):
        done("log", "create", name, "--log", tmp_path / name)
    done("log", "create", "default", "--log", tmp_path / "data" / "log")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def topic(*arguments: str) -> str:
    (found,) = done("log", "list", "--json", *arguments).lines
    return str(found["topic"])


def test_the_nearest_says_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert topic() == "default"
    monkeypatch.setenv("TAILRACE_LOG", "environment")
    assert topic() == "environment"
    assert topic("--log", "typed") == "typed"
    monkeypatch.setenv("TAILRACE_LOG", "")
    assert topic() == "default"


def test_a_variable_applies_to_every_command_that_has_the_option(
    here: Path, monkeypatch: pytest.MonkeyPatch, quiet_logs: None
) -> None:
    for name in ("log", "state", "snapshots", "archive"):
        monkeypatch.setenv(f"TAILRACE_{name.upper()}", f"shop/{name}")
    for name, value in (
        ("WORKERS", "1"),
        ("FSYNC", "commit"),
        ("SNAPSHOT_EVERY", "1h"),
        ("CREATE_TOPICS", "1"),
    ):
        monkeypatch.setenv(f"TAILRACE_{name}", value)
    done("run", SHOP, "--end-of-input", "--after-end")
    assert (here / "shop" / "state" / "shop").is_dir()
    made = done("snapshot", "create", SHOP, "--json").lines[0]["id"]
    assert made in {one["id"] for one in done("snapshot", "list", SHOP, "--json").lines}
    assert done("status", SHOP, "--json").lines[0]["app"] == "shop"
    assert done("archive", "--json").lines[0]["topics"] > 0
    assert (here / "shop" / "archive").is_dir()
    assert done("rebuild", SHOP, "--json").lines[0]["snapshot"]
    assert len(done("snapshot", "list", SHOP, "--json").lines) >= 2


def test_a_wrong_value_is_reported_with_the_variable_that_it_came_from(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_WORKERS", "several")
    ended = run("run", SHOP)
    assert ended.code == 2
    assert "'--workers' (env var: 'TAILRACE_WORKERS'): 'several' is not a valid integer range." in ended.err


def test_what_the_environment_turns_on_can_be_turned_off(
    here: Path, monkeypatch: pytest.MonkeyPatch, quiet_logs: None
) -> None:
    monkeypatch.setenv("TAILRACE_CREATE_TOPICS", "1")
    where = ("--log", here / "shop", "--end-of-input", "--after-end")
    assert "there is no log in" in refused("run", SHOP, "--no-create-topics", *where, code=1)
    with pytest.raises(SystemExit):
        run_app(
            shop.app,
            {"create_topics": False, "log": str(here / "shop"), "end_of_input": True, "after_end": True},
        )
    assert not (here / "shop").exists()
    done("run", SHOP, *where)


def test_every_flag_that_can_be_set_elsewhere_has_a_flag_that_turns_it_off() -> None:
    def flags(command: click.Command) -> Iterator[Setting]:
        for one in command.params:
            if isinstance(one, Setting) and one.is_flag:
                yield one
        for sub in command.commands.values() if isinstance(command, click.Group) else ():
            yield from flags(sub)

    found = list(flags(tailrace))
    assert found
    for one in found:
        assert one.secondary_opts == [f"--no-{one.setting}"]
