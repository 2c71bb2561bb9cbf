"""Which changelog has the state of an app: each upgrade begins another *generation*.

Theory. The new version of an app has other rows than the old one, and both must be whole in the log while the old one runs. So an
upgrade writes the state of the new version into a changelog of its own, and from the record ``ready`` on that one is the state::

    generation   topic                  whose state
    0            ``<app>.changelog``    until the first upgrade
    n            ``<app>.changelog.n``  of the version that an upgrade has begun; unused if the upgrade was given up

The last record of ``<app>.upgrades`` says which one is the state (``Upgrade.current``). ``located`` puts its name into a plan. It is called
where a plan and a log come together, and a plan that was located stays with its changelog. So a reader that was opened before the
switch would show the old state without a limit. Therefore, after ``ready``, the command writes the record ``MOVED`` into each partition
of the old changelog, and every reader fails there (``reading.changelog``).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tailrace.core.declare.plan import Plan
from tailrace.core.names import changelog_of
from tailrace.history.reading.upgrades import last_upgrade
from tailrace.log.interface import Log


def at_generation(plan: Plan, generation: int) -> Plan:
    """The plan with the changelog of a generation."""
    return replace(plan, changelog_topic=changelog_of(plan.app, generation), located=True)


def located(plan: Plan, log: Log) -> Plan:
    """The plan with the changelog that has the state in this log; one that was located before is returned as it is."""
    return plan if plan.located else at_generation(plan, _current(plan.app, log))


def changelog_in(log: Log, app: str) -> str:
    """The changelog that has the state of an app in this log."""
    return changelog_of(app, _current(app, log))


def _current(app: str, log: Log) -> int:
    found = last_upgrade(log, app)
    return 0 if found is None else found.current


def folder_of(states: Path, plan: Plan) -> Path:
    """The folder, in that of an app's states, for copies of the changelog that a plan was located at: a position means an offset there."""
    suffix = plan.changelog_topic.removeprefix(changelog_of(plan.app))
    return states / f"generation{suffix}" if suffix else states


def drop_older(states: Path, plan: Plan) -> None:
    """Delete the copies of earlier changelogs, which nobody continues."""
    mine = folder_of(states, plan)
    if mine == states or not states.is_dir():
        return
    number = int(mine.name.rpartition(".")[2])
    for one in states.iterdir():
        head, _, last = one.name.rpartition(".")
        if last.isdecimal() and (not head or (head == "generation" and int(last) < number)) and one.is_dir():
            shutil.rmtree(one, ignore_errors=True)
