"""Settings: the command line comes before the environment, that before the file, that before the default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tailrace.cli.main import tailrace
from tailrace.cli.script import run_app
from tailrace.cli.settings import Setting
from tests.cli import shop
from tests.cli.commands import SHOP, done, run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with four logs, each with a topic of its name."""
    for name in ("typed", "environment", "file"):
        done("log", "create", name, "--log", tmp_path / name)
    done("log", "create", "default", "--log", tmp_path / "data" / "log")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def topic(*arguments: str) -> str:
    (found,) = done("log", "list", "--json", *arguments).lines
    return str(found["topic"])


def test_the_nearest_says_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert topic() == "default"
    (here / "tailrace.toml").write_text('log = "file"\n')
    assert topic() == "file"
    monkeypatch.setenv("TAILRACE_LOG", "environment")
    assert topic() == "environment"
    assert topic("--log", "typed") == "typed"
    monkeypatch.setenv("TAILRACE_LOG", "")
    assert topic() == "file"


def test_a_key_applies_to_every_command_that_has_the_option(here: Path, quiet_logs: None) -> None:
    (here / "tailrace.toml").write_text(
        'log = "shop/log"\nstate = "shop/state"\nsnapshots = "shop/snapshots"\nworkers = 1\nfsync = '
        '"commit"\n'
        'snapshot-every = "1h"\ncreate-topics = true\narchive = "shop/archive"\n'
    )
    done("run", SHOP, "--until-end")
    assert (here / "shop" / "state" / "shop").is_dir()
    made = done("snapshot", "create", SHOP, "--json").lines[0]["id"]
    assert made in {one["id"] for one in done("snapshot", "list", SHOP, "--json").lines}
    assert done("status", SHOP, "--json").lines[0]["app"] == "shop"
    assert done("archive", "--json").lines[0]["topics"] > 0
    assert (here / "shop" / "archive").is_dir()
    assert done("rebuild", SHOP, "--json").lines[0]["snapshot"]
    assert len(done("snapshot", "list", SHOP, "--json").lines) >= 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('lgo = "x"', "There is no setting 'lgo' in tailrace.toml. Did you mean 'log'?"),
        ('entirely-else = "x"', "There is no setting 'entirely-else' in tailrace.toml. There are: archive, "),
        ("until-end = true", "There is no setting 'until-end' in tailrace.toml."),
        ("log = 5", "The value of 'log' in tailrace.toml is not text in quotes."),
        ("snapshot-every = 3600", "The value of 'snapshot-every' in tailrace.toml is not text in quotes."),
        ("workers = 1.9", "The value of 'workers' in tailrace.toml is not a whole number."),
        ('workers = "2"', "The value of 'workers' in tailrace.toml is not a whole number."),
        ("workers = 0", "The value of 'workers' in tailrace.toml is wrong: 0 is not in the range x>=1."),
        (
            'commit-interval = "0ms"',
            "The value of 'commit-interval' in tailrace.toml is wrong: it must be at least 1ms.",
        ),
        ('fsync = "never"', "The value of 'fsync' in tailrace.toml is wrong: 'never' is not one of"),
        ('create-topics = "yes"', "The value of 'create-topics' in tailrace.toml is not true or false."),
        ("log = ", "tailrace.toml cannot be read: Invalid value"),
    ],
)
def test_a_wrong_file_is_refused_by_every_command(here: Path, text: str, said: str) -> None:
    (here / "tailrace.toml").write_text(text)
    ended = run("graph", SHOP)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert said in line
    assert done("--version").out


def test_a_wrong_value_is_reported_with_the_variable_that_it_came_from(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_WORKERS", "several")
    ended = run("run", SHOP)
    assert ended.code == 2
    assert "'--workers' (env var: 'TAILRACE_WORKERS'): 'several' is not a valid integer range." in ended.err


@pytest.mark.parametrize("source", ["file", "environment"])
def test_what_a_source_turns_on_can_be_turned_off(
    here: Path, monkeypatch: pytest.MonkeyPatch, quiet_logs: None, source: str
) -> None:
    if source == "file":
        (here / "tailrace.toml").write_text("create-topics = true\n")
    else:
        monkeypatch.setenv("TAILRACE_CREATE_TOPICS", "1")
    where = ("--log", here / "shop", "--until-end")
    ended = run("run", SHOP, "--no-create-topics", *where)
    assert ended.code == 1
    assert "there is no log in" in ended.err
    with pytest.raises(SystemExit):
        run_app(shop.app, {"create_topics": False, "log": str(here / "shop"), "until_end": True})
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
