"""Options that describe an installation. Sources, in this order: command line, environment variable, file, default.

For ``--commit-interval`` the variable is ``TAILRACE_COMMIT_INTERVAL``, and the key is ``commit-interval``. The file is
``tailrace.toml``, or the table ``[tool.tailrace]`` of ``pyproject.toml``, in the working folder. A key applies to every command
that has the option.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from tailrace.core.suggestions import did_you_mean, nearest

OWN_FILE = "tailrace.toml"
PROJECT_FILE = "pyproject.toml"
TABLE = "tool.tailrace"
PREFIX = "TAILRACE_"


class Setting(click.Option):
    """An option that can be set for a whole installation. ``setting`` is its key (default: the option's name)."""

    def __init__(self, declarations: Any = None, *, setting: str = "", **attributes: Any) -> None:
        super().__init__(declarations, show_envvar=True, **attributes)
        self.setting = setting or max(self.opts, key=len).removeprefix("--")
        self.envvar: str = f"{PREFIX}{self.setting.upper().replace('-', '_')}"


class ConfigFile(NamedTuple):
    """The settings in a file, by key."""

    path: str
    table: str
    """The table that holds the settings in a ``pyproject.toml``; else empty."""
    values: dict[str, Any]

    def of_key(self, key: str) -> str:
        """A key and its place, for messages."""
        return f"{key!r} in {f'[{self.table}] of ' if self.table else ''}{self.path}"


def config_file(folder: Path) -> ConfigFile | None:
    """The configuration file in a folder, if there is one.

    Raises:
        click.UsageError: The file is not TOML, or there are two files with settings.
    """
    own = project = None
    if (data := _toml(folder / OWN_FILE)) is not None:
        own = ConfigFile(OWN_FILE, "", data)
    if (data := _toml(folder / PROJECT_FILE)) is not None:
        table = data.get("tool", {}).get("tailrace")
        if table is not None:
            if not isinstance(table, dict):
                raise click.UsageError(f"{TABLE!r} in {PROJECT_FILE} is not a table.")
            project = ConfigFile(PROJECT_FILE, TABLE, table)
    if own is not None and project is not None:
        raise click.UsageError(
            f"Both {OWN_FILE} and [{TABLE}] of {PROJECT_FILE} hold settings: keep them in one place."
        )
    return own or project


def default_map(file: ConfigFile, commands: click.Group) -> dict[str, Any]:
    """The values for Click, by command and parameter.

    Raises:
        click.UsageError: There is no such setting, or its value is wrong for the option.
    """
    known = {one.setting: one for one in _settings(commands)}
    for key, value in file.values.items():
        setting = known.get(key)
        if setting is None:
            names = ", ".join(sorted(known))
            meant = did_you_mean(key, known)
            raise click.UsageError(
                f"There is no setting {file.of_key(key)}. {meant or f'There are: {names}.'}"
            )
        kinds, what = _kinds(setting)
        if type(value) not in kinds:
            raise click.UsageError(f"The value of {file.of_key(key)} is not {what}.")
        if not isinstance(setting.type, click.Path):  # the command itself looks if there is such a folder
            try:
                setting.type.convert(value, setting, None)
            except click.BadParameter as error:
                raise click.UsageError(f"The value of {file.of_key(key)} is wrong: {error.message}") from None
    return _mapped(commands, file.values)


def _kinds(setting: Setting) -> tuple[tuple[type, ...], str]:
    """The types that a setting may have in the file. A number instead of text is refused: its meaning would be a guess."""
    if setting.is_flag:
        return (bool,), "true or false"
    if isinstance(setting.type, click.IntRange | click.types.IntParamType):
        return (int, str), "a whole number"
    return (str,), "text in quotes"


def misspelt_variables(commands: click.Group, environment: Iterable[str]) -> Iterator[str]:
    """A warning for each variable whose name is similar to that of a setting. Other variables are ignored."""
    known = {one.envvar.removeprefix(PREFIX) for one in _settings(commands)}
    for name in sorted(environment):
        rest = name.removeprefix(PREFIX)
        meant = nearest(rest, known) if name.startswith(PREFIX) and rest not in known else None
        if meant is not None:
            yield f"no option reads the environment variable {name}. Did you mean {PREFIX}{meant}?"


def _toml(path: Path) -> dict[str, Any] | None:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{os.fspath(path.name)} cannot be read: {error}.") from None


def _settings(command: click.Command) -> Iterator[Setting]:
    for one in command.params:
        if isinstance(one, Setting):
            yield one
    for sub in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _settings(sub)


def _mapped(command: click.Command, values: dict[str, Any]) -> dict[str, Any]:
    if isinstance(command, click.Group):
        return {name: _mapped(sub, values) for name, sub in command.commands.items()}
    return {
        str(one.name): values[one.setting]
        for one in _settings(command)
        if values.get(one.setting) is not None
    }


def is_typed(name: str) -> bool:
    """Whether a parameter of the running command is on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE
