"""Renamed options. The former name still works, with a warning; the next version accepts the new name only."""

from __future__ import annotations

import click

_OLD: dict[str, dict[str, str]] = {
    "rebuild": {"--from": "--log", "--until-time": "--until", "--processes": "--workers"},
    "log retain": {"--for-ever": "--forever"},
    **{
        f"snapshot {name}": {"--at": "--snapshots"} for name in ("create", "list", "show", "verify", "delete")
    },
}


def renamed(command_path: str, arguments: list[str]) -> list[str]:
    """The arguments of a command, with former names of options replaced."""
    command = command_path.partition(" ")[2]
    if command == "archive" and arguments and not arguments[0].startswith("-"):
        _warn(command, "the argument LOG", "--log")
        return ["--log", *arguments]
    old = _OLD.get(command, {})
    given: list[str] = []
    for at, one in enumerate(arguments):
        if one == "--":
            return [*given, *arguments[at:]]
        name, is_assigned, value = one.partition("=")
        if name in old:
            if any(other.partition("=")[0] == old[name] for other in arguments):
                raise click.UsageError(f"{name} is the former name of {old[name]}: give one of them")
            _warn(command, name, old[name])
            one = f"{old[name]}{is_assigned}{value}"
        given.append(one)
    return given


def _warn(command: str, old: str, new: str) -> None:
    click.echo(
        f"tailrace: warning: {old} of 'tailrace {command}' is now {new}. The next version accepts the new form only.",
        err=True,
    )
