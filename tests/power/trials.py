"""One crash state, or one corruption: built, checked, and put into words for a table."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tailrace.core.errors import TailraceError
from tests.power.checks import check
from tests.power.disk import Cut, Recorded
from tests.power.files import COMMITS, DURABLE

_SHOWN = 500


class TrialError(AssertionError):
    """Something that must not happen, with what is needed to repeat it."""


def power_cut(made: Recorded, policy: str, cut: Cut, folder: Path) -> str:
    """Check the crash state of a cut; its outcome in words.

    Raises:
        TrialError: Something durable was lost, something is torn, the service does not start, or its results are wrong.
    """
    folder.mkdir()
    made.build(cut, folder)
    try:
        promised = made.promised(cut)
        durable = promised if policy == DURABLE else made.synced(cut, COMMITS)
        found = check(folder, policy, promised, durable)
    except (AssertionError, TailraceError) as error:
        said = str(error)[:_SHOWN]
        raise TrialError(f"policy {policy!r}, {cut}: {type(error).__name__}: {said}") from error
    shutil.rmtree(folder)
    return found.kind


def counted(trials: Callable[[int], str], seeds: range) -> tuple[Counter[str], list[str]]:
    """How often there was each outcome, and what must not happen but did."""
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    for seed in seeds:
        try:
            outcomes[trials(seed)] += 1
        except TrialError as error:
            outcomes["FAILED"] += 1
            failures.append(str(error))
    return outcomes, failures
