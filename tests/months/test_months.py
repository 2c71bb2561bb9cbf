"""Months in the life of a service: whatever is done to it, its state and its outputs are what the oracle says.

Each seed is a random history of one service: step after step, each followed by a look whether all is as the oracle says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

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
STEPS_EACH = 8


class Wrong(AssertionError):
    """A seed that failed: what had been done, and how to do it again."""

    def __init__(self, seed: int, taken: list[str], error: BaseException) -> None:
        lines = "\n".join(f"  {number}. {one}" for number, one in enumerate(taken, 1))
        super().__init__(
            f"seed {seed}: {type(error).__name__}: {error}\nafter\n{lines}\n"
            f"Run it again: TAILRACE_FIRST_SEED={seed} TAILRACE_SEEDS=25 pytest tests/months"
        )


def months(seed: int, folder: Path, steps: int = STEPS_EACH) -> None:
    """Some steps of a seed.

    Raises:
        Wrong: Something is not as it must be.
    """
    folder.mkdir(parents=True)
    taken: list[str] = []
    try:
        service = Service(seed, folder)
        for _ in range(steps):
            possible = [one for one in STEPS if one.possible(service)]
            (step,) = service.random.choices(possible, [one.weight for one in possible])
            service.said.clear()
            taken.append(step.name)
            try:
                step.take(service)
            finally:
                taken[-1] = f"{step.name}: {'; '.join(service.said)}"
            if service.over:
                break
            if service.started and not service.pending:
                service.check()
    except Exception as error:
        raise Wrong(seed, taken, error) from error


@pytest.mark.one_seed_in(25)  # a life of months takes 1.4 s
def test_a_service_is_what_its_events_and_its_versions_say_whatever_is_done_to_it(
    seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        months(seed, tmp_path / str(seed))
