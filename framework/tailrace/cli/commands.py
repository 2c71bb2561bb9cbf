"""The classes of all commands and groups: they parse arguments and add hints to errors."""

from __future__ import annotations

import shlex
from typing import Any

import click

from tailrace.core.errors import LogMissingError
from tailrace.core.suggestions import did_you_mean


class Command(click.Command):
    """A command whose errors name the command, and the one that creates a missing log."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See ``click.Command``."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # the parser leaves it out
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """See ``click.Command``."""
        try:
            return super().invoke(ctx)
        except LogMissingError as error:
            error.hint = _how_to_create(ctx)
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


def _how_to_create(ctx: click.Context) -> str:
    """The hint for a log that does not exist: the whole command that creates it for the app or the topic of this command."""
    given = ctx.params
    app, topic, folder = (
        given.get("app") or next(iter(given.get("apps", ())), None),
        given.get("topic"),
        given.get("folder"),
    )
    what = ["--app", app] if app and ":" in app else [topic] if topic else []
    if folder is None or not what:
        return "Correct the path (--log)."
    return f"Correct the path, or create it: `{shlex.join(['tailrace', 'log', 'create', *what, '--log', str(folder)])}`."
