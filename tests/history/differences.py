"""Two states of an app, key by key, wherever they are kept: a changelog, folders of state, a snapshot, a store."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.describe_rows import Change, shown_key
from tailrace.core.rows import SCHEMA_ROW
from tailrace.core.storage import StateReader
from tailrace.history.comparing.matched_rows import Comparison, Row, Side, compared_keys
from tailrace.history.comparing.replayed_state import LiveFolder
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.interface import Log
from tailrace.log.opening import open_log
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots, which_where


class Differing(NamedTuple):
    """A key that differs, and how."""

    actor: str
    key: str
    changes: tuple[Change, ...]


def differences_of(plan: Plan, one: Side, other: Side) -> list[Differing | str]:
    """The keys that differ, and as text the defaults that do."""
    counts, actors = Comparison(), {actor.name: actor for actor in plan.actors}
    found = [
        Differing(
            key.actor, shown_key(actors.get(key.actor), key.key), key.describe(actors.get(key.actor), readers)
        )
        for number in range(plan.partitions)
        for key, readers, differs in compared_keys(number, one, other, counts)
        if differs
    ]
    assert counts.count == len(found)
    return [*found, *counts.defaults]


def from_the_log(
    app: str, place: object, *, snapshot: object = None, folder: Path | None = None
) -> list[Differing | str]:
    """How a snapshot, or the folders of state, differ from the changelog of an app."""
    with closing(open_log(str(place))) as log:
        plan = AppHistory(find_app(app).plan(), log).plan
        other = of_snapshot(plan, snapshot) if folder is None else of_folders(plan, folder)
        return differences_of(plan, of_log(plan, log), other)


def of_log(plan: Plan, log: Log) -> Side:
    """What the changelog holds."""
    history = AppHistory(plan, log)
    kept = (history.committed(number, with_rows=True).rows for number in range(plan.partitions))
    return of_stores("the log", (one for one in kept if one is not None))


def of_folders(plan: Plan, folder: Path) -> Side:
    """What the folders of state hold, all of which must be whole."""
    with closing(LiveFolder(folder, plan)) as live:
        return of_stores("the folders", (live.states(number)[0].store for number in range(plan.partitions)))


def of_stores(name: str, stores: Iterable[StateReader]) -> Side:
    """What stores hold by partition, as of now."""
    held: list[tuple[list[Row], bytes | None]] = [
        (list(one.scan(b"\x01", b"\xff")), one.get(SCHEMA_ROW)) for one in stores
    ]
    return Side(name, lambda number: iter(held[number][0]), lambda number: held[number][1])


def of_snapshot(plan: Plan, reference: object) -> Side:
    """What a snapshot holds: the latest one of a place, or URI#ID."""
    place, which = which_where(str(reference))
    found = Snapshots(place, plan.app).open(which)
    assert found.manifest.partitions == plan.partitions
    return Side("the snapshot", found.rows, lambda number: found.manifest.task(number).schema or None)
