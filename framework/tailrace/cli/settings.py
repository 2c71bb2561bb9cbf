"""Options that describe an installation: from the command line, else the environment, else a file.

For ``--commit-interval`` the variable is ``TAILRACE_COMMIT_INTERVAL``, and the key is ``commit-interval``.
The file is ``tailrace.toml`` in the working folder. A key applies to every command that has the option.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tailrace.core.suggestions import did_you_mean

FILE = "tailrace.toml"
PREFIX = "TAILRACE_"


class Setting(click.Option):
    """An option that can be set for a whole installation. ``setting`` is its key (default: its name)."""

    def __init__(self, declarations: Any = None, *, setting: str = "", **attributes: Any) -> None:
        super().__init__(declarations, show_envvar=True, **attributes)
        self.setting = setting or max(self.opts, key=len).removeprefix("--")
        self.envvar: str = f"{PREFIX}{self.setting.upper().replace('-', '_')}"


def default_map(folder: Path, commands: click.Group) -> dict[str, Any]:
    """The settings of the file in a folder for Click, by command and parameter; empty if there is no file.

    Raises:
        click.UsageError: The file is not TOML, there is no such setting, or its value is wrong for the
        option.
    """
    try:
        values = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{FILE} cannot be read: {error}.") from None
    known = {one.setting: one for one in _settings(commands)}
    for key, value in values.items():
        setting = known.get(key)
        if setting is None:
            meant = did_you_mean(key, known) or f"There are: {', '.join(sorted(known))}."
            raise click.UsageError(f"There is no setting {key!r} in {FILE}. {meant}")
        wanted, what = _type_in_file(setting)
        if type(value) is not wanted:
            raise click.UsageError(f"The value of {key!r} in {FILE} is not {what}.")
        if not isinstance(setting.type, click.Path):  # the command itself looks if there is such a folder
            try:
                setting.type.convert(value, setting, None)
            except click.BadParameter as error:
                raise click.UsageError(f"The value of {key!r} in {FILE} is wrong: {error.message}") from None
    return _mapped(commands, values)


def _type_in_file(setting: Setting) -> tuple[type, str]:
    """The type of a setting in the file. A number instead of text is refused: its unit would be a guess."""
    if setting.is_flag:
        return bool, "true or false"
    if isinstance(setting.type, click.types.IntParamType):
        return int, "a whole number"
    return str, "text in quotes"


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
