"""The classes of all commands and groups: they parse arguments and add hints to errors."""

from __future__ import annotations

import click

from tailrace.core.errors import OptionError, SetAsideError, TailraceError, UnknownAppError
from tailrace.core.suggestions import did_you_mean

_CODES: dict[type[TailraceError], int] = {OptionError: 2, UnknownAppError: 2, SetAsideError: 3}


def exit_code_of(error: TailraceError) -> int:
    """The exit code of a command that failed with an error; see ``main``."""
    return _CODES.get(type(error), 1)


class Command(click.Command):
    """A command whose errors name the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See ``click.Command``."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # the parser leaves it out
            raise


class Commands(click.Group):
    """A group that suggests a command for an unknown one."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See ``click.Group``."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = did_you_mean(args[0], self.list_commands(ctx))
            error.message = f"{error.message} {meant}".rstrip()
            raise
