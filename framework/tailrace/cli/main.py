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

import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import click

from tailrace.cli.commands import Commands, exit_code_of
from tailrace.cli.console import show_waiting
from tailrace.cli.showing import printable
from tailrace.core.errors import TailraceError

INTERRUPTED = 130
_TERMINATED = 128 + signal.SIGTERM
COMMANDS = (
    "demo", "new", "dev", "run", "status", "get", "serve", "replay", "explore", "ab", "rebuild", "archive", "export", "sql", "snapshot", "log",
    "topics", "dead-letters", "retire", "upgrade", "migrate", "reshape", "faust", "graph", "schemas",
)  # fmt: skip


class _ImportedWhenUsed(Mapping[str, click.Command]):
    """The commands by name, each from its module. A process runs one of them, and importing all doubles the time of its start."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        module = name.replace("-", "_")
        command: click.Command = getattr(import_module(f"tailrace.cli.{module}"), module)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@click.group(
    cls=Commands, commands=_ImportedWhenUsed(), context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="tailrace", message="tailrace, version %(version)s")
def tailrace() -> None:
    """Event-driven services: exactly once on an event log, replayed bit for bit.

    An option on the command line comes before its environment variable.
    """
    show_waiting()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process. See the head of this file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; a file that is opened later must not get its number
            os.set_inheritable(number := os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(number, mode))
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")
    # A service that has not begun has nothing to commit; later it takes the signal.
    begins = sys.argv[1:2] == ["run"]

    def end(number: int, frame: object) -> None:
        del number, frame
        os._exit(0 if begins else _TERMINATED)

    if begins or os.getpid() == 1:  # the first process of a container has no default action
        signal.signal(signal.SIGTERM, end)
    sys.exit(execute(arguments))


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error is written to standard error, in one line."""
    settings = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("TAILRACE_")]
    for given in (*(sys.argv[1:] if arguments is None else arguments), *settings):
        if any("\ud800" <= one <= "\udfff" for one in given) and not Path(given).is_file():
            shown = given.encode(errors="surrogateescape").decode(errors="backslashreplace")
            return _complain(f"{shown} is not UTF-8: correct it.", click.UsageError.exit_code)
    try:
        code = tailrace.main(arguments, prog_name="tailrace", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "tailrace"
        return _complain(f"{_sentence(error.format_message())} See {command} --help.", error.exit_code)
    except click.ClickException as error:
        return _complain(_sentence(error.format_message()), error.exit_code)
    except click.Abort:
        return INTERRUPTED
    except TailraceError as error:
        return _complain(str(error), exit_code_of(error))
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    click.echo(f"tailrace: {printable(message)}", err=True)
    return code


def _sentence(message: str) -> str:
    said = " ".join(message.split())
    return said if said.endswith((".", "?", "!")) else f"{said}."
