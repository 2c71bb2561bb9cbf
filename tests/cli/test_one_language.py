"""The command line is one language: an option that several commands have is the same option in each."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import pytest

from tailrace.cli.commands import Command, Commands
from tailrace.cli.main import tailrace
from tailrace.cli.settings import Setting
from tests.cli.commands import ALL

DIFFERENT: dict[str, dict[str, Any]] = {
    "--snapshots": {"run": "takes no snapshots unless it says where"},
    "--workers": dict.fromkeys(
        ("ab", "rebuild", "upgrade", "export", "sql"),
        "as many as there are cores: a service shares the machine, a rebuild is alone",
    ),
    "--app": dict.fromkeys(
        ("migrate", "topics apply", "topics delete", "topics plan"), "takes several apps, which share topics"
    ),
    "--partitions": {"reshape": "is that of the code by default"},
    "--key": {"log append": "names a field"},
    "--order": {"ab": "goes along the tape only if both versions do"},
    "--from": {"log dump": "takes an offset as well", "migrate": "is a log", "faust import": "is a table"},
    "--until": {"log dump": "takes an offset as well"},
    "--to": dict.fromkeys(
        ("ab", "archive", "migrate", "rebuild", "reshape", "run", "upgrade"), "is a place of its own kind"
    ),
    "--format": dict.fromkeys(("graph", "log append"), "has formats of its own"),
    "--records": dict.fromkeys(("explore", "log tail"), "has a number of its own"),
}
"""Where an option differs, and why."""
SILENT = {
    "demo": "is for people, and its result is its exit code",
    "dev": "is for people, and lasts until it is stopped",
    "new": "is for people, and its result is a folder",
    "run": "logs to standard error, as JSON with --log-format json",
    "serve": "answers in JSON, and logs to standard error",
    "log create": "says nothing",
    "log copy": "says nothing",
    "log dump": "writes JSON lines",
    "schemas export": "writes a JSON document",
}


def forms() -> dict[str, dict[str, tuple[Any, ...]]]:
    found: dict[str, dict[str, tuple[Any, ...]]] = defaultdict(dict)
    for command, one in ALL.items():
        for option in one.params:
            if isinstance(option, click.Option):
                name = max(option.opts, key=len)
                found[name][command] = (
                    *(sorted(option.opts), repr(option.type), option.multiple, option.is_flag),
                    *(option.required, repr(option.default), option.metavar, option.envvar),
                )
    return {name: of for name, of in found.items() if len(of) > 1}


@pytest.mark.parametrize("name", sorted(forms()))
def test_an_option_has_one_form_and_one_default_everywhere(name: str) -> None:
    def plain(form: tuple[Any, ...]) -> str:
        return " ".join(str(part).split(" object at ")[0] for part in form)

    alike = {
        command: plain(form)
        for command, form in forms()[name].items()
        if command not in DIFFERENT.get(name, {})
    }
    assert len(set(alike.values())) <= 1, alike


@pytest.mark.parametrize("command", sorted(set(ALL) - set(SILENT)))
def test_what_a_command_tells_it_tells_as_json(command: str) -> None:
    options = [one for one in ALL[command].params if "--json" in one.opts]
    assert options


@pytest.mark.parametrize("command", ALL)
def test_a_setting_shows_its_environment_variable_in_the_help(command: str) -> None:
    context = click.Context(ALL[command], info_name=command)
    said = " ".join(ALL[command].get_help(context).split())
    for one in ALL[command].params:
        if isinstance(one, Setting):
            assert f"env var: {one.envvar}" in said


def test_all_commands_are_of_the_class_that_explains_what_was_wrong() -> None:
    assert {type(one) for one in ALL.values()} == {Command}
    assert {type(one) for one in (tailrace, *tailrace.commands.values()) if isinstance(one, click.Group)} == {
        Commands
    }


def test_the_documentation_lists_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| .* \| `(TAILRACE_\w+)` \|$", page, re.MULTILINE))
    assert listed == {
        one.envvar for command in ALL.values() for one in command.params if isinstance(one, Setting)
    }
