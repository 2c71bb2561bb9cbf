"""``tailrace schemas``: locks the types of events and messages, compares them with the lock, and exports them."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from tailrace.cli.arguments import app_argument, json_option, piped, plans_of, tell
from tailrace.cli.commands import Command, Commands
from tailrace.cli.console import say
from tailrace.core.counting import counted
from tailrace.core.errors import OptionError
from tailrace.processes.app_loading import find_app
from tailrace.schemas.comparing import Break, Mode, breaks
from tailrace.schemas.exporting import formatted, json_schema
from tailrace.schemas.lock import LOCK_FILE, plain_of, read_lock, shape_of, write_lock

apps_argument = click.argument("apps", metavar="APP...", nargs=-1, required=True)
lock_option = click.option(
    "--lock",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=LOCK_FILE,
    show_default=True,
    help="The lock: a file to commit with the code.",
)


class Checked(msgspec.Struct):
    """The result of ``check``. ``changed``: apps whose lock is to be written again."""

    mode: Mode
    apps: list[str]
    breaks: list[Break]
    changed: list[str]


@click.group(cls=Commands, short_help="Types of events and messages: lock, check, export.")
def schemas() -> None:
    """The types of an app's events and messages: lock them, check changes for compatibility, export them."""


@schemas.command(cls=Command, short_help="Write the lock.")
@apps_argument
@lock_option
@json_option
def lock(*, apps: tuple[str, ...], path: Path, as_json: bool) -> None:
    """Write the types of these apps to the lock; its other apps stay. An APP is package.module:app."""
    shapes = {plan.app: shape_of(plan) for plan in plans_of(apps)}
    before = {name: one.plain for name, one in read_lock(path).items()} if path.exists() else {}
    write_lock(path, before | {name: plain_of(one) for name, one in shapes.items()})
    topics = sum(len(one.topics) for one in shapes.values())
    line = f"{path}: {counted(len(shapes), 'app')}, {counted(topics, 'topic')}"
    tell({"lock": str(path), "apps": sorted(shapes), "topics": topics}, [line], as_json=as_json)


@schemas.command(cls=Command, short_help="Compare the types with the lock.")
@apps_argument
@lock_option
@click.option(
    "--mode",
    type=click.Choice(["backward", "forward", "full"]),
    default="backward",
    show_default=True,
    help="backward: new code reads old data; forward: old code reads new data; full: both.",
)
@json_option
def check(*, apps: tuple[str, ...], path: Path, mode: Mode, as_json: bool) -> int:
    """Check that a change of the code is compatible with the lock. An APP is package.module:app.

    The exit code is 1 if something cannot be read: each topic or message, its type and field are named.
    """
    plans, locked = plans_of(apps), read_lock(path)
    result = Checked(mode, [], [], [])
    for plan in plans:
        if plan.app not in locked:
            raise OptionError(
                f"the lock {path} does not have the app {plan.app!r}",
                hint="Add it with 'tailrace schemas lock', and commit the lock.",
            )
        declared = shape_of(plan)
        result.apps.append(plan.app)
        result.breaks += breaks(plan.app, locked[plan.app].shape, declared, mode)
        if plain_of(declared) != locked[plan.app].plain:
            result.changed.append(plan.app)
    tell(result, _lines(result), as_json=as_json)
    if result.changed and not result.breaks and not as_json:
        changed = ", ".join(result.changed)
        say(f"Types of {changed} have changed: write {path} again, and commit it.", err=True)
    return 1 if result.breaks else 0


@schemas.command(cls=Command, short_help="Write the types for other tools.")
@app_argument
def export(*, app: str) -> None:
    """Write the types of an app's events as JSON Schema."""
    document = formatted(json_schema(find_app(app).plan()))
    with piped():
        click.echo(document, nl=False)


def _lines(result: Checked) -> list[str]:
    if not result.breaks:
        return [f"{', '.join(result.apps)}: compatible ({result.mode})"]
    broken = [f"{one.app}: {one}" for one in result.breaks]
    return [*broken, f"{counted(len(broken), 'incompatible change')} ({result.mode})"]
