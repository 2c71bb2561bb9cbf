"""The main command group, and the exit codes of all commands.

========  =================================================================
exit 0    done
exit 1    it failed: a ``TailraceError``, reported in a sentence or two
exit 2    wrong usage: a wrong argument, an unknown app
exit 3    done, but some input was set aside: events in the dead letters, rows of a file
exit 4    ``topics plan``, ``topics apply``: topics are missing, or differ from what the apps need
exit 130  ended by Ctrl-C
========  =================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tailrace.cli.ab import ab
from tailrace.cli.archive import archive
from tailrace.cli.commands import Commands, exit_code_of
from tailrace.cli.compare import compare
from tailrace.cli.console import show_waiting
from tailrace.cli.dead_letters import dead_letters
from tailrace.cli.explore import explore
from tailrace.cli.export import export
from tailrace.cli.faust import faust
from tailrace.cli.get import get
from tailrace.cli.graph import graph
from tailrace.cli.log import log
from tailrace.cli.migrate import migrate
from tailrace.cli.rebuild import rebuild
from tailrace.cli.replay import replay
from tailrace.cli.reshape import reshape
from tailrace.cli.retire import retire
from tailrace.cli.run import run
from tailrace.cli.schemas import schemas
from tailrace.cli.serve import serve
from tailrace.cli.snapshot import snapshot
from tailrace.cli.sql import sql
from tailrace.cli.status import status
from tailrace.cli.topics import topics
from tailrace.cli.upgrade import upgrade
from tailrace.core.errors import TailraceError

INTERRUPTED = 130


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tailrace", message="tailrace, version %(version)s")
def tailrace() -> None:
    """Event-driven services: exactly once on an event log, replayed bit for bit.

    An option on the command line comes before its environment variable.
    """
    show_waiting()


tailrace.add_command(run)
tailrace.add_command(status)
tailrace.add_command(get)
tailrace.add_command(serve)
tailrace.add_command(replay)
tailrace.add_command(explore)
tailrace.add_command(compare)
tailrace.add_command(ab)
tailrace.add_command(rebuild)
tailrace.add_command(archive)
tailrace.add_command(export)
tailrace.add_command(sql)
tailrace.add_command(snapshot)
tailrace.add_command(log)
tailrace.add_command(topics)
tailrace.add_command(dead_letters)
tailrace.add_command(retire)
tailrace.add_command(upgrade)
tailrace.add_command(migrate)
tailrace.add_command(reshape)
tailrace.add_command(faust)
tailrace.add_command(graph)
tailrace.add_command(schemas)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process. See the head of this file."""
    sys.exit(execute(arguments))


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error is written to standard error, in one line."""
    try:
        code = tailrace.main(arguments, prog_name="tailrace", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.UsageError as error:
        return _complain(f"{_sentence(error.format_message())} See {_help_of(error)}.", error.exit_code)
    except click.ClickException as error:
        return _complain(_sentence(error.format_message()), error.exit_code)
    except click.Abort:
        return INTERRUPTED
    except TailraceError as error:
        return _complain(str(error), exit_code_of(error))
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    click.echo(f"tailrace: {message}", err=True)
    return code


def _sentence(message: str) -> str:
    said = " ".join(message.split())
    return said if said.endswith((".", "?", "!")) else f"{said}."


def _help_of(error: click.UsageError) -> str:
    return f"{error.ctx.command_path if error.ctx else 'tailrace'} --help"
