"""Wrong usage of a command on an app that has run has the exit code 2, in one line on standard error, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.commands import SHOP, done, run

STATE = ("--state", "{state}", "--end-of-input", "--after-end")
TO = ("--to", "{made}")
WRONG = [
    (("run", SHOP, *STATE, "--workers", "99"), "at most 3 workers have something to do"),
    (("run", SHOP, *STATE, "--as", "a b"), "'a b' cannot be the name of an app"),
    (("run", SHOP, *STATE, "--as", "shop"), "is already the name of"),
    (("run", SHOP, *STATE, "--replace-state"), "--from-snapshot"),
    (("run", f"{SHOP}@a b", *STATE), "'a b' cannot be the name of an app"),
    (("replay", SHOP, "--partition", "99"), "--partition"),
    (("replay", SHOP, "--until-offset", "nosuch=1"), "does not read 'nosuch'"),
    (("replay", SHOP, "--until-offset", "purchases=99"), "is outside the log"),
    (("rebuild", SHOP, *TO, "--outputs", "csv:x"), "outputs cannot go to 'csv:x'"),
    (("rebuild", SHOP, *TO, "--until", "2050-01-01"), "is outside the log"),
    (("rebuild", SHOP, *TO, "--until-offset", "purchases=99"), "is outside the log"),
    (("replay", SHOP, "--until-offset", "purchases:99=1"), "has no partition 99"),
    (("dead-letters", "list", "nosuch"), "no dead letters of an app 'nosuch'"),
    (("dead-letters", "show", "nosuch", "0-0"), "no dead letters of an app 'nosuch'"),
    (("dead-letters", "redrive", "nosuch", "--all"), "no dead letters of an app 'nosuch'"),
    (("dead-letters", "redrive", "shop"), "Name the dead letters"),
    (("retire", "nosuch"), "nosuch"),
    (("topics", "delete", "--app", "nosuch", "--yes"), ""),
    (("log", "create", "a b"), "cannot be the name of a topic"),
    (("log", "tail", "purchases", "--partition", "99"), "has 3 partitions"),
    (("log", "dump", "purchases", "--partition", "99"), "has 3 partitions"),
    (("snapshot", "create", SHOP, "--snapshots", ""), "it is empty"),
    (
        ("snapshot", "create", SHOP, "--snapshots", "{made}", "--name", "a/b"),
        "cannot be the name of a snapshot",
    ),
]
"""Arguments, and a part of the message."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log on which the shop has run."""
    folder = tmp_path_factory.mktemp("usage")
    place = str(folder / "log")
    done("topics", "apply", "--app", SHOP, "--log", place)
    done("run", SHOP, "--end-of-input", "--after-end", "--log", place, "--state", folder / "state")
    return place


def refused(*arguments: object) -> str:
    ended = run(*arguments)
    assert ended.code == 2, (ended.out, ended.err)
    (line,) = ended.err.splitlines()
    if arguments[0] == "run" and line.startswith("{"):  # as its log
        said = msgspec.json.decode(line)
        assert (said["level"], said["exit_code"]) == ("error", 2)
        return str(said["message"])
    assert line.startswith("tailrace: ")
    return line


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(one) for one, _ in WRONG])
def test_wrong_usage_is_refused_and_changes_nothing(
    log: str, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    made, state = tmp_path / "made", tmp_path / "state"
    given = [one.format(made=made, state=state) for one in arguments]
    assert said.format(made=made) in refused(*given, "--log", log)
    assert not list(made.glob("*/*/manifest.json"))
    assert not state.exists()


def test_an_app_cannot_be_moved_to_the_log_that_it_lives_on(log: str) -> None:
    assert "are the same log" in refused("migrate", "--from", log, "--to", log, "--app", SHOP)
