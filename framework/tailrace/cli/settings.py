"""Options that describe an installation: from the command line, else from the environment.

For ``--commit-interval`` the variable is ``TAILRACE_COMMIT_INTERVAL``. It applies to every command that has
the option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

PREFIX = "TAILRACE_"
FC = TypeVar("FC", bound=Callable[..., Any])


class Setting(click.Option):
    """An option that can be set for a whole installation. ``setting``: the variable's name (default: its own)."""

    def __init__(self, declarations: Any = None, *, setting: str = "", **attributes: Any) -> None:
        super().__init__(declarations, show_envvar=True, **attributes)
        self.setting = setting or max(self.opts, key=len).removeprefix("--")
        self.envvar: str = f"{PREFIX}{self.setting.upper().replace('-', '_')}"


def setting(*declarations: str, **attributes: Any) -> Callable[[FC], FC]:
    """The option of a command, as ``click.option`` makes it; see ``Setting``."""
    return click.option(*declarations, cls=Setting, **attributes)


def refuse_typed(names: Iterable[str], why: str) -> None:
    """Refuse options that are on the command line. ``why`` completes "--name …"."""
    for name in names:
        if is_typed(name):
            raise click.UsageError(f"--{name.replace('_', '-')} {why}.")


def is_typed(name: str) -> bool:
    """Whether a parameter of the running command is on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE
