"""``tailrace serve``: answers questions about the committed state of an app over HTTP."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from tailrace.cli.arguments import (
    any_log_option,
    app_argument,
    log_format_option,
    opened_log,
    partitions_option,
)
from tailrace.cli.commands import Command
from tailrace.cli.http_options import Http, http_options
from tailrace.core.declare.plan import Plan
from tailrace.core.storage import Store
from tailrace.history.reading.generations import folder_of
from tailrace.processes import logs
from tailrace.processes.app_loading import find_app
from tailrace.serve.answers import Questions
from tailrace.serve.followers import Followers
from tailrace.state import StateIdentity, StateMemory, open_store

_ADDRESS = "127.0.0.1:8080"


@click.command(cls=Command, short_help="Answer questions about committed state over HTTP.")
@app_argument
@http_options
@partitions_option
@click.option(
    "--copy",
    "folder_of_copy",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of this process's copy of the state (default: in memory, read again at each start).",
)
@click.option(
    "--memory", "memory_mib", type=click.IntRange(16), default=256, show_default=True, help="MiB for --copy."
)
@click.option("--dev", "note", type=click.Path(path_type=Path), hidden=True)
@any_log_option
@log_format_option
def serve(
    *,
    app: str,
    http: Http,
    partitions: tuple[int, ...],
    folder_of_copy: Path | None,
    memory_mib: int,
    note: Path | None,
    folder: Path | str,
    log_format: Any,
) -> None:
    """Answer questions about what APP has committed, until SIGTERM or Ctrl-C.

    It follows the changelog and the tables. The workers of APP do not notice it, and need not run. See docs/querying.md.
    """
    listen = http.listen(_ADDRESS)
    assert listen is not None
    from tailrace.serve import process  # noqa: PLC0415  # an extra's packages
    from tailrace.serve.page.dev import Dev  # noqa: PLC0415  # as above
    from tailrace.serve.page.history import Replays  # noqa: PLC0415  # as above
    from tailrace.serve.page.page import Page  # noqa: PLC0415  # as above

    questions = Questions(find_app(app).plan())
    plan = questions.plan
    followed = {*partitions} or {*range(plan.partitions)}
    if max(followed) >= plan.partitions:
        raise click.BadParameter(
            f"{plan.app!r} has the partitions 0 to {plan.partitions - 1}", param_hint="--partition"
        )
    memory = StateMemory(memory_mib << 20)

    def open_copy(located: Plan, number: int, table: str) -> Store:
        states = None if folder_of_copy is None else folder_of_copy / "serve" / plan.app
        place = None if states is None else folder_of(states, located) / str(number)
        if states is not None and table:
            place = states / "tables" / table / str(number)
        return open_store(place, StateIdentity(f"{plan.app}/{table}".rstrip("/"), number), memory)

    handler = logs.configure(log_format)
    try:
        with opened_log(folder) as log, closing(Followers(plan, log, followed, open_copy)) as followers:
            replays = Replays(app, folder)
            dev = None if note is None else Dev(note, replays)
            page = Page(questions, followers, log, replays, may_redrive=listen.knows_clients, dev=dev)
            process.serve(listen, questions, followers, page)
    finally:
        logging.getLogger().removeHandler(handler)
