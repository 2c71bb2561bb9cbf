"""Every command there is answers what it cannot understand in one line, with exit code 2, and touches
nothing.
"""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tailrace.cli.main import tailrace
from tests.cli.commands import SHOP, done, run
from tests.cli.wrong_arguments import ALL

NEEDY = [name for name, one in ALL.items() if any(p.required for p in one.params)]
BY_NAME = ("snapshot list", "snapshot show", "snapshot verify", "snapshot delete")
"""They look into a folder of snapshots, by the name that the app has there."""
WITH_APP = [
    (name, [p.name for p in one.params if isinstance(p, click.Argument) and p.required])
    for name, one in ALL.items()
    if any(isinstance(p, click.Argument) and p.name in ("app", "apps") for p in one.params)
    and name not in BY_NAME
]
WITH_TOPIC = [
    name
    for name, one in ALL.items()
    if name != "log create"
    and any(isinstance(p, click.Argument) and p.name == "topic" and p.required for p in one.params)
]


def refused(*arguments: object, code: int = 2) -> str:
    ended = run(*arguments)
    assert ended.code == code, (ended.out, ended.err)
    (line,) = ended.err.splitlines()
    assert line.startswith("tailrace: ")
    return line


def test_there_are_commands() -> None:
    assert {"run", "replay", "graph", "log append", "dead-letters redrive"} <= set(ALL)
    assert len(WITH_APP) > 4
    assert len(WITH_TOPIC) > 2


@pytest.mark.parametrize("command", ALL)
def test_an_unknown_option(command: str) -> None:
    assert "No such option: --no-such-option" in refused(*command.split(), "--no-such-option")


@pytest.mark.parametrize("command", NEEDY)
def test_nothing_of_what_it_needs(command: str) -> None:
    assert "Missing" in refused(*command.split())


@pytest.mark.parametrize("command", ["log", "dead-letters", "snapshot", "topics"])
def test_a_group_without_or_with_an_unknown_command(command: str) -> None:
    assert "No such command 'walk'" in refused(command, "walk")
    ended = run(command)
    assert ended.code == 2
    assert "Usage: tailrace " in ended.err


@pytest.mark.parametrize("group", ["", "log", "dead-letters", "faust", "snapshot", "topics"])
def test_the_help_of_a_group_has_a_whole_line_for_each_of_its_commands(group: str) -> None:
    said = done(*group.split(), "--help").out
    lines = said.partition("Commands:\n")[2].splitlines()
    of_group = tailrace.commands[group] if group else tailrace
    assert isinstance(of_group, click.Group)
    assert [line.split()[0] for line in lines] == sorted(of_group.commands)
    assert [line for line in lines if line.endswith("...") or not line.endswith(".")] == []


@pytest.mark.parametrize(("command", "needed"), WITH_APP)
@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("tests.cli.shop:nothing", "has no 'nothing'. There is tests.cli.shop:app"),
        ("tests.cli.shop:REFUSED", "is of type set, and no app"),
    ],
)
def test_an_unknown_app(command: str, needed: list[str], app: str, said: str, tmp_path: Path) -> None:
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "log")
    arguments: list[object] = [app if one in ("app", "apps") else "0-1" for one in needed]
    options = {p.opts[0] for p in ALL[command].params}
    for option, value in (
        ("--log", tmp_path / "log"),
        ("--state", tmp_path / "state"),
        ("--snapshots", tmp_path / "snapshots"),
    ):
        if option in options:
            arguments += [option, value]
    if "--all" in options:
        arguments.append("--all")
    if "--to" in options and any(p.required for p in ALL[command].params if "--to" in p.opts):
        arguments += ["--to", *(["parquet"] if command == "export" else []), tmp_path / "made"]
    if command == "faust import":
        arguments += ["--from", "faust://shop/counts"]
    assert said in refused(*command.split(), *arguments)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", WITH_TOPIC)
def test_an_unknown_topic(command: str, tmp_path: Path) -> None:
    done("log", "create", "plain", "--log", tmp_path / "log")
    said = refused(*command.split(), "plian", "--log", tmp_path / "log", code=1)
    assert "there is no such topic in the log (topic 'plian')" in said
    assert "Create it, or correct the name." in said


@pytest.mark.parametrize("url", ["kafka://", "kafka://h:port", "kafka:/h:9092", "kafka:h", "Kafka://h:9092"])
def test_a_misspelt_address_of_kafka_is_refused_at_once(url: str) -> None:
    line = refused("run", SHOP, "--log", url)
    assert "--log" in line
    assert "kafka://host:9092" in line
