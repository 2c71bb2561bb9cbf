"""Wrong arguments of every command, with what the command line says of them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tailrace.cli.main import tailrace


def commands(group: click.Group, *before: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by what is typed for it."""
    for name, one in sorted(group.commands.items()):
        if isinstance(one, click.Group):
            yield from commands(one, *before, name)
        else:
            yield " ".join([*before, name]), one


ALL = dict(commands(tailrace))
