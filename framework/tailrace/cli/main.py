"""The group of all commands, and how a command ends.

========  =================================================================
exit 0    done
exit 1    it failed: a ``TailraceError``, told in a sentence or two
exit 2    the command was not understood: a wrong argument, an unknown app
exit 3    done, but something was set aside that could not be handled: events in the dead letters, rows of a file
exit 130  ended by Ctrl-C
========  =================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import click

from tailrace.cli.archive import archive
from tailrace.cli.compare import compare
from tailrace.cli.dead_letters import dead_letters
from tailrace.cli.explore import explore
from tailrace.cli.graph import graph
from tailrace.cli.log import log
from tailrace.cli.misspelt import Commands, no_such_option
from tailrace.cli.rebuild import rebuild
from tailrace.cli.replay import replay
from tailrace.cli.retire import retire
from tailrace.cli.run import run
from tailrace.cli.snapshot import snapshot
from tailrace.cli.status import status
from tailrace.core.errors import SetAsideError, TailraceError, UnknownAppError

FAILED = 1
WRONG_ARGUMENTS = 2
SET_ASIDE = 3
INTERRUPTED = 130


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        try:
            said = f"version {version('tailrace')}"
        except PackageNotFoundError:  # not installed, as in a container
            said = "run from its source"
        click.echo(f"tailrace, {said}")
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def tailrace() -> None:
    """Event-driven services: exactly once on an event log, replayed bit for bit."""


tailrace.add_command(run)
tailrace.add_command(status)
tailrace.add_command(replay)
tailrace.add_command(explore)
tailrace.add_command(compare)
tailrace.add_command(rebuild)
tailrace.add_command(archive)
tailrace.add_command(snapshot)
tailrace.add_command(log)
tailrace.add_command(dead_letters)
tailrace.add_command(retire)
tailrace.add_command(graph)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process. See the head of this file."""
    sys.exit(execute(arguments))


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. What it has to complain of goes to standard error, in one line."""
    try:
        code = tailrace.main(arguments, prog_name="tailrace", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return WRONG_ARGUMENTS
    except click.NoSuchOption as error:
        return _complain(f"{_sentence(no_such_option(error))} See {_help_of(error)}.", error.exit_code)
    except click.UsageError as error:
        return _complain(f"{_sentence(error.format_message())} See {_help_of(error)}.", error.exit_code)
    except click.ClickException as error:
        return _complain(_sentence(error.format_message()), error.exit_code)
    except click.Abort:
        return INTERRUPTED
    except UnknownAppError as error:
        return _complain(str(error), WRONG_ARGUMENTS)
    except SetAsideError as error:
        return _complain(str(error), SET_ASIDE)
    except TailraceError as error:
        return _complain(str(error), FAILED)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    click.echo(f"tailrace: {message}", err=True)
    return code


def _sentence(message: str) -> str:
    said = " ".join(message.split())
    return said if said.endswith((".", "?", "!")) else f"{said}."


def _help_of(error: click.UsageError) -> str:
    return f"{error.ctx.command_path if error.ctx else 'tailrace'} --help"
