"""What may happen to a service in the course of months: each step has a name, what it does, when it can be, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.months import past, runs
from tests.months.service import Service


class Step(NamedTuple):
    """One kind of step. ``weight``: how often it is drawn, against the others that are possible."""

    name: str
    take: Callable[[Service], None]
    possible: Callable[[Service], bool] = lambda _: True
    weight: int = 1


STEPS = (
    Step("append", runs.appended, weight=2),
    Step("batch", runs.batch, weight=4),
    Step("live", runs.live, weight=4),
    Step("crash", runs.crashed, weight=3),
    Step("upgrade", runs.upgraded, runs.may_upgrade, weight=4),
    Step("state lost", runs.state_lost, past.at_rest),
    Step("replay", past.replayed, past.may_replay, weight=2),
    Step("compare", past.compared, past.at_rest),
    Step("snapshot", past.snapshot_taken, past.at_rest),
    Step("start from snapshot", past.started_from_snapshot, past.has_snapshot, weight=2),
    Step("rebuild", past.rebuilt, past.may_rebuild, weight=2),
    Step("rebuild canonically", past.rebuilt_canonically, past.may_rebuild, weight=2),
    Step("replace state", past.replaced, past.may_rebuild, weight=2),
    Step("replace state too late", past.replaced_too_late, past.may_replace_too_late, weight=3),
    Step("redrive", past.redriven, past.may_redrive, weight=2),
    Step("drop field", past.dropped, past.may_drop),
    Step("clean", past.cleaned),
    Step("archive and delete", past.deleted, past.at_rest),
    Step("delete unread", past.unread_deleted, lambda one: one.seed % 8 == 0),
)
