"""``tailrace demo``: a service is killed, resumes and is replayed, in a new folder."""

from __future__ import annotations

from pathlib import Path

import click

from tailrace.cli.commands import Command
from tailrace.demo.session import run_session

_NEXT = (
    ("tailrace get cards:app Card {card}", "the state of one card"),
    ("tailrace replay cards:app --trace {card}", "every step of one card, again"),
    ("tailrace status cards:app", "how far each task has come"),
    ("tailrace explore cards:app", "the same events in other orders of arrival"),
    ("tailrace serve cards:app", "a page and answers over HTTP"),
)


@click.command(cls=Command, short_help="A first look: kill a service, resume, replay.")
@click.argument(
    "folder", metavar="[FOLDER]", default="tailrace-demo", type=click.Path(file_okay=False, path_type=Path)
)
def demo(*, folder: Path) -> None:
    """Run a small service in FOLDER (default: tailrace-demo), kill it in the middle of its work, resume it, and replay it.

    It needs no server and no network. FOLDER must be new or empty, and holds the code, the log and the state afterwards.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise click.UsageError(f"{str(folder)!r} is not empty. Name a new folder, or delete this one.")
    except OSError as error:
        raise click.UsageError(f"{str(folder)!r} cannot be made: {error.strerror}.") from None
    click.echo(
        f"{folder / 'cards.py'}: one actor for each card, an alert if its payments within an hour exceed 1,000.\n"
    )
    card = run_session(
        folder, lambda step, said: click.echo(f"  {click.style(f'{step:<10}', bold=True)}{said}")
    )
    click.echo(f"\nNext: cd {folder}")
    for typed, why in _NEXT:
        click.echo(f"  {typed.format(card=card):<46}# {why}")
