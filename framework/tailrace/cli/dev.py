"""``tailrace dev``: an app and its page while its code is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from tailrace.cli.arguments import app_argument, log_option, opened_log, state_option
from tailrace.cli.commands import Command
from tailrace.cli.http_options import Http
from tailrace.cli.run import run as run_command
from tailrace.cli.settings import setting
from tailrace.core.errors import OptionError
from tailrace.dev.children import Code
from tailrace.dev.session import Commands, Session

_COMMITS = "--commit-interval=100ms"


@click.command(
    cls=Command,
    short_help="Run an app and its page while you write it.",
    context_settings={"ignore_unknown_options": True},
)
@app_argument
@click.argument("options", metavar="[OPTIONS OF RUN]...", nargs=-1, type=click.UNPROCESSED)
@log_option
@state_option
@setting("--http", metavar="HOST:PORT", help="Where the page is (default: 127.0.0.1:8080). Loopback only.")
def dev(*, app: str, options: tuple[str, ...], folder: Path, state: Path, http: str | None) -> None:
    """Run APP and its page on a log in a folder, with the topics made, and restart both when the code changes.

    The state is kept. Where it does not fit the changed code, the error says which option of `tailrace run`
    helps; this command takes these options, too. The page can kill the worker and replay what it has done.
    Ctrl-C stops both; `tailrace run` continues with the log and the state.
    """
    http = http or "127.0.0.1:8080"
    try:
        listen = Http(http, None, None, None, None).listen()
    except OptionError as error:
        what = f"{error.what}. The page of tailrace dev is for this machine only, such as 127.0.0.1:8080"
        raise click.BadParameter(what, param_hint="--http") from None
    assert listen is not None
    with closing(listen.bind()) as one:
        http = f"{http.rpartition(':')[0]}:{one.getsockname()[1]}"
    os.environ.pop("TAILRACE_HTTP", None)  # it is the page's, and the worker would answer there
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # see ``dev.children``
    place = ("--log", str(folder), "--log-format", "text")
    run = ["run", app, *place, "--state", str(state), "--create-topics", _COMMITS, *options]
    run_command.make_context("run", run[1:])  # a wrong option ends this command, and not the worker alone
    with opened_log(folder, create=True):
        pass
    serve = ["serve", app, *place, "--http", http]
    session = Session(
        app, Commands(_command, run, serve, str(state)), lambda said: click.echo(f"dev: {said}")
    )
    session.run(lambda code: _say_first(app, folder, f"http://{http}", code))


def _say_first(app: str, folder: Path, url: str, code: Code) -> None:
    log = "" if str(folder) == "data/log" else f" --log {folder}"
    click.echo(f"  {url}/{'':<24}the page of {app}; Ctrl-C stops it")
    for path in [*code.asked, "/status"][:2]:
        click.echo(f"  curl {url}{path}")
    for topic in code.inputs:
        click.echo(f"  tailrace log append {topic} --app {app}{log}    # JSON lines on standard input")


def _command(arguments: Sequence[str]) -> None:
    """Run a command, in a process of its own. Raises TailraceError, also for wrong usage."""
    from tailrace.cli.main import tailrace  # noqa: PLC0415  # it imports the commands by their names

    try:
        tailrace.main(arguments, prog_name="tailrace", standalone_mode=False)
    except click.ClickException as error:
        raise OptionError(error.format_message()) from None
