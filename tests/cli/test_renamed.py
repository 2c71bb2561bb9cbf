"""Old names of options are read for one version, with a warning; a stray or an unfinished option says what it was meant to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import SHOP, done, run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that the shop has run on."""
    path = tmp_path_factory.mktemp("renamed")
    done("log", "create", "--app", SHOP, "--log", path / "log")
    done("run", SHOP, "--until-end", "--log", path / "log", "--state", path / "state")
    return path


@pytest.mark.parametrize(
    ("arguments", "old", "new"),
    [
        (["snapshot", "list", "shop", "--at", "AT"], "--at", "--snapshots"),
        (["snapshot", "list", "shop", "--at=AT"], "--at", "--snapshots"),
        (["log", "retain", "purchases", "--for-ever", "--log", "LOG"], "--for-ever", "--forever"),
        (["archive", "LOG", "--to", "AT/archive"], "the argument LOG", "--log"),
        (["rebuild", SHOP, "--from", "LOG", "--to", "AT/a"], "--from", "--log"),
        (["rebuild", SHOP, "--log", "LOG", "--to", "AT/b", "--processes", "1"], "--processes", "--workers"),
        (
            ["rebuild", SHOP, "--log", "LOG", "--to", "AT/c", "--key", "a", "--until-time", "2100-01-01"],
            "--until-time",
            "--until",
        ),
    ],
)
def test_an_old_name_is_read_and_warned_of(
    place: Path, tmp_path: Path, arguments: list[str], old: str, new: str
) -> None:
    ended = run(*(one.replace("LOG", str(place / "log")).replace("AT", str(tmp_path)) for one in arguments))
    first = ended.err.splitlines()[0]
    assert first.startswith(f"tailrace: warning: {old} of 'tailrace ")
    assert f" is now {new}." in first
    assert ended.code in (0, 1, 2)
    assert "See tailrace" not in ended.err  # the usage was understood


def test_what_follows_two_dashes_is_no_option(tmp_path: Path) -> None:
    ended = run("snapshot", "delete", "shop", "--snapshots", tmp_path, "--", "--at")
    assert "warning" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dead-letters", "redrive", "shop", "0-0"], "Unexpected argument '0-0'. Did you mean --id 0-0?"),
        (["log", "dump", "t", "csv"], "Unexpected argument 'csv'. Did you mean --format csv?"),
        (["log", "retain", "t", "7d"], "Unexpected argument '7d'. Did you mean --retention 7d?"),
        (
            ["replay", SHOP, "purchases:0=7"],
            "Unexpected argument 'purchases:0=7'. Did you mean --until-offset purchases:0=7?",
        ),
        (
            ["replay", SHOP, "2013-01-01"],
            "Did you mean --until 2013-01-01 or --until-clock 2013-01-01?",
        ),
        (["log", "list", "what"], "Unexpected argument 'what'. See tailrace log list --help."),
        (
            ["explore", SHOP, "--from"],
            "Option '--from' requires an argument. Write for example --from 2013-01-01T05:17:00Z.",
        ),
        (["run", SHOP, "--lease"], "Write for example --lease 30s."),
        (["run", SHOP, "--fsync"], "Write for example --fsync interval."),
        (["run", SHOP, "--workers"], "Option '--workers' requires an argument."),
        (["rebuild", SHOP, "--until-offset"], "Write for example --until-offset departures:0=1234."),
        (["run", SHOP, "--until-end=yes"], "Option '--until-end' does not take a value."),
    ],
)
def test_what_was_meant_is_asked(arguments: list[str], said: str) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert said in line


def test_an_end_is_of_one_partition_or_of_all(place: Path) -> None:
    where = ("--log", place / "log")
    for command in (("replay", SHOP), ("explore", SHOP)):
        run(*command, "--until-offset", "purchases:0=0", "--until-offset", "purchases=9", *where)
        ended = run(*command, "--until-offset", "purchases:99=0", *where)
        assert ended.code == 2
        assert "'purchases' has no partition 99, but 0 to " in ended.err
        assert (
            "write departures:0=1234 for one partition" in run(*command, "--until-offset", "17", *where).err
        )


def test_an_old_name_beside_the_new_one_is_refused(place: Path) -> None:
    ended = run("rebuild", SHOP, "--log", place / "log", "--from", place / "other", "--to", place / "to")
    assert ended.code == 2
    assert "--from is the former name of --log: give one of them" in ended.err
