"""``tailrace new``: writes the folder of a new service."""

from __future__ import annotations

from pathlib import Path

import click

from tailrace.cli.commands import Command
from tailrace.projects.project import KINDS, write_project


@click.command(cls=Command, short_help="Write the folder of a new service.")
@click.argument("folder", metavar="FOLDER", required=False, type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice([*KINDS]), default="service", show_default=True, help="See --list.")
@click.option("--list", "shows_kinds", is_flag=True, help="List the kinds of services.")
def new(*, folder: Path | None, kind: str, shows_kinds: bool) -> None:
    """Write a service into FOLDER, which must be new or empty: the app, the types of its events, its tests, and files for containers.

    The last part of FOLDER is the name of the app and of its module. All files are yours to change.
    """
    if shows_kinds:
        for name, about in KINDS.items():
            click.echo(f"{name:<10}{about}")
        return
    if folder is None:
        raise click.UsageError("Name a new folder, such as: tailrace new shop")
    for path in write_project(folder, kind):
        click.echo(f"  {folder / path}")
    click.echo(f"\nNext: cd {folder}")
    click.echo(
        "  pytest                                        # its tests, with a crash and other schedules"
    )
    click.echo(f"  {f'tailrace dev {folder.name}:app':<46}# run it, with a page")
