"""``tailrace retire``: declares that an app has stopped for good: its readers no longer wait for it."""

from __future__ import annotations

from pathlib import Path

import click

from tailrace.cli.arguments import any_log_option, app_argument, json_option, name_of, opened_log, tell
from tailrace.cli.commands import Command
from tailrace.cli.console import Part, styled_table
from tailrace.cli.showing import instant
from tailrace.core.counting import counted
from tailrace.history.retirement import Retirement
from tailrace.history.retirement import retire as retire_app


@click.command(cls=Command, short_help="Declare that an app has stopped for good.")
@app_argument
@json_option
@any_log_option
def retire(*, app: str, as_json: bool, folder: Path | str) -> None:
    """Declare that APP has stopped for good, so that services that follow its topics no longer wait for it.

    APP is package.module:app or, if its code no longer exists, its name. The app must not run. Its state and
    its history stay: if it is started again after all, it resumes where it stopped, and publishes again.
    """
    name = name_of(app)
    with opened_log(folder) as log:
        done = retire_app(log, name)
    said = {**done._asdict(), "topics": [one._asdict() for one in done.topics]}
    tell(said, _lines(done), as_json=as_json)


def _lines(done: Retirement) -> list[Part]:
    if not done.publishers:
        return [
            f"{done.app!r} holds no reader back: it was retired before, or its inputs were idle when it stopped."
        ]
    rows = [
        (one.topic, one.publishers, instant(one.lowest_ms), instant(one.highest_ms)) for one in done.topics
    ]
    header = ("topic", "publishers", "lowest watermark", "highest watermark")
    return [f"retired {done.app!r}: {counted(len(done.publishers), 'task')}", *styled_table(rows, header)]
