"""The classes of all commands and groups: they parse arguments and add hints to errors."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click

from tailrace.cli.renamed import renamed
from tailrace.cli.settings import origins_of_named
from tailrace.core.errors import LogMissingError, TailraceError
from tailrace.core.suggestions import did_you_mean

_ANY_TEXT = (
    click.types.StringParamType,
    click.Path,
    click.types.IntParamType,
    click.types.UnprocessedParamType,
)
"""Types that accept nearly any text, so they are not suggested for a stray argument."""


class Command(click.Command):
    """A command that accepts former names of its options, and suggests the option that a stray argument belongs to."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See ``click.Command``."""
        args = renamed(ctx.command_path, args)
        ctx.allow_extra_args = True
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # the parser leaves it out
            raise
        ctx.allow_extra_args = False
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(_stray(self, ctx, rest[0]), ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """See ``click.Command``."""
        try:
            return super().invoke(ctx)
        except TailraceError as error:
            if isinstance(error, LogMissingError):
                error.hint = _how_to_create(ctx)
            for said in origins_of_named(ctx, str(error)):
                error.add_note(said)
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
        except click.NoSuchOption:
            raise
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


def without_value(error: click.BadOptionUsage) -> str:
    """The message for an option at the end of the line that needs a value."""
    if error.ctx is None:
        return error.message
    for one in error.ctx.command.params:
        if isinstance(one, click.Option) and error.option_name in one.opts and not one.is_flag:
            example = getattr(one.type, "example", "")
            return (
                f"{error.message} Write for example {error.option_name} {example}"
                if example
                else error.message
            )
    return error.message


def _stray(command: click.Command, ctx: click.Context, text: str) -> str:
    """The message for an argument that the command does not take."""
    meant = [f"{name} {shlex.quote(text)}" for name in _takers(command, ctx, text)]
    said = f"Unexpected argument {text!r}."
    if command.name == "run" and ":" in text:
        return f"{said} A process runs one app: start a second `tailrace run`."
    return f"{said} Did you mean {' or '.join(meant)}?" if meant else said


def _takers(command: click.Command, ctx: click.Context, text: str) -> Iterator[str]:
    """Options that are not given yet and whose type accepts this text, but not every text."""
    for one in command.params:
        if not isinstance(one, click.Option) or one.is_flag or isinstance(one.type, _ANY_TEXT):
            continue
        if (
            ctx.get_parameter_source(str(one.name)) is click.core.ParameterSource.COMMANDLINE
            and not one.multiple
        ):
            continue
        try:
            one.type.convert(text, one, ctx)
        except click.BadParameter:
            continue
        yield max(one.opts, key=len)
