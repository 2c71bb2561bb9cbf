"""``tailrace compare``: compares two states of an app: logs, state folders or snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

import click
import msgspec

from tailrace.cli.arguments import app_argument, json_option, piped
from tailrace.cli.commands import Command
from tailrace.cli.console import say
from tailrace.cli.showing import difference_as_dict, printable
from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.rows import SCHEMA_ROW
from tailrace.history.comparing.states import Comparison, Side, compare_states
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.generations import folders_in
from tailrace.log.opening import is_log, open_log
from tailrace.processes.app_loading import find_app
from tailrace.state import MemoryStore, RocksStore, StateIdentity
from tailrace.state.folder import LABEL as STATE_LABEL
from tailrace.state.snapshots import Snapshots, which_where
from tailrace.state.store_cut import decode_store_cut

DIFFERENT = 1
_EVERYTHING = (b"\x01", b"\xff")


@click.command(cls=Command, short_help="Compare two states of an app, key by key.")
@app_argument
@click.argument("one")
@click.argument("other")
@click.option(
    "--with",
    "other_app",
    metavar="APP",
    help="The app whose state OTHER is, if it is not APP: another version of the code, or the same under "
    "another name.",
)
@json_option
def compare(*, app: str, one: str, other: str, other_app: str | None, as_json: bool) -> int:
    """Compare two states of APP byte by byte, and show for each key the fields that differ. Exit 1 if any do.

    States written by two versions of the code are compared by the values that each version reads.

    ONE and OTHER are each a folder of state (of a service that is not running), an event log (a folder or
    kafka://host:9092; its changelog is used), or a place of snapshots: URI for the latest, URI#ID for
    another.
    """
    plans = [find_app(reference).plan() for reference in (app, other_app or app)]
    if plans[0].partitions != plans[1].partitions:
        raise click.BadParameter(
            f"{plans[0].app!r} has {plans[0].partitions} partitions, {plans[1].app!r} has "
            f"{plans[1].partitions}",
            param_hint="--with",
        )
    with ExitStack() as closing:  # closing a side fails if it changed meanwhile
        sides = [_side(text, plan, closing) for text, plan in zip((one, other), plans, strict=True)]
        found = compare_states(plans[0], sides[0], sides[1])
    with piped():
        _say_json(found, one, other) if as_json else _say(found)
    return DIFFERENT if found.differs else 0


# --- where a state is kept


def _side(text: str, plan: Plan, closing: ExitStack) -> Side:
    folder = Path(text)
    if is_log(text):
        return _of_changelog(text, plan, closing)
    states = folders_in(folder / plan.app)
    if len(states) > 1:
        raise click.BadParameter(
            f"{str(folder / plan.app)!r} has copies of several changelogs of the app, as an upgrade is open or was given up, or its new "
            f"version has not run here: {', '.join(one.name for one in states)}. Compare the log"
        )
    if states and (states[0] / "0" / STATE_LABEL).is_file():
        return _of_folder(text, states[0], plan, closing)
    uri, which = which_where(text)
    if "://" not in uri and not (Path(uri) / plan.app).is_dir():
        # Checked before the import of pyarrow: if that is missing too, its error would hide this one.
        raise click.BadParameter(
            f"{uri!r} holds nothing of the app {plan.app!r}: it is not an event log, and there is no folder "
            f"{str(Path(uri) / plan.app)!r} with its state or its snapshots"
        )
    found = Snapshots(uri, plan.app).open(which)
    if found.manifest.partitions != plan.partitions:
        raise click.BadParameter(
            f"the snapshot {found.manifest.id} has {found.manifest.partitions} partitions, {plan.app!r} has "
            f"{plan.partitions}"
        )
    # An edited snapshot is at the same position as the one that it was made from.
    canonical = (
        next((one.source for one in reversed(found.chain) if one.source != "edited"), "") == "canonical"
    )
    return Side.of_snapshot(text, found, canonical=canonical)


def _of_changelog(text: str, plan: Plan, closing: ExitStack) -> Side:
    log = open_log(text)
    closing.callback(log.close)
    history = AppHistory(plan, log)
    plan = history.plan
    # The service may continue meanwhile: all its tasks are compared at one consistent cut.
    closing.enter_context(log.compaction_paused([plan.changelog_topic]))
    ends = log.ends(topics_of(plan, log)).offsets[plan.changelog_topic]

    @lru_cache(maxsize=1)
    def kept(number: int) -> MemoryStore:
        found = history.committed(number, with_rows=True, end=ends[number]).rows
        assert found is not None
        return found

    return Side(
        text,
        lambda number: kept(number).rows(),
        lambda number: history.committed(number, end=ends[number]).cut,
        lambda number: kept(number).get(SCHEMA_ROW),
    )


def _of_folder(text: str, folder: Path, plan: Plan, closing: ExitStack) -> Side:
    stores: dict[int, RocksStore] = {}

    def store(number: int) -> RocksStore:
        if number not in stores:
            stores[number] = RocksStore(folder / str(number), StateIdentity(plan.app, number))
            closing.callback(stores[number].close)
        return stores[number]

    def is_there(number: int) -> bool:
        return (folder / str(number) / STATE_LABEL).is_file()  # opening a store would create it

    def cut(number: int) -> bytes | None:
        data = store(number).cut if is_there(number) else None
        return None if data is None else decode_store_cut(data).core

    def rows(number: int) -> Iterator[tuple[bytes, bytes]]:
        return store(number).scan(*_EVERYTHING) if is_there(number) else iter(())

    def schema(number: int) -> bytes | None:
        return store(number).get(SCHEMA_ROW) if is_there(number) else None

    return Side(text, rows, cut, schema)


# --- the output


def _say(found: Comparison) -> None:
    click.echo(
        f"compared {counted(found.rows[0], 'row')} with {found.rows[1]:,}, of {counted(found.keys, 'key')}"
    )
    for said in found.cuts:
        click.echo(f"note: {said}")
    if not found.differs:
        how = "both versions of the code read the same" if found.as_read else "the bytes are equal"
        say((f"differences: none, {how} (outputs are not compared)", "green"))
        return
    for said in found.defaults:
        say((f"defaults differ: {printable(said)}", "red"))
    say((f"differences: {counted(found.count, 'key')}", "red"))
    for each in found.shown:
        say((f"{each.actor} {printable(each.key or '')} (partition {each.partition})", "bold"))
        for line in each.lines():
            click.echo(f"    {printable(line)}")
    if found.count > len(found.shown):
        click.echo(f"and {found.count - len(found.shown):,} more")


def _say_json(found: Comparison, one: str, other: str) -> None:
    said = {
        "one": one,
        "other": other,
        "rows": found.rows,
        "keys": found.keys,
        "differences": found.count,
        "defaults": found.defaults,
        "notes": found.cuts,
        "first": [difference_as_dict(each) for each in found.shown],
    }
    click.echo(msgspec.json.encode(said))
