"""One crash state: built and checked."""

from __future__ import annotations

import shutil
from pathlib import Path

from tailrace.core.errors import TailraceError
from tests.power.checks import check
from tests.power.disk import Cut, Recorded
from tests.power.files import COMMITS, DURABLE

_SHOWN = 500


class TrialError(AssertionError):
    """Something that must not happen, with what is needed to repeat it."""


def power_cut(made: Recorded, policy: str, cut: Cut, folder: Path) -> None:
    """Check the crash state of a cut.

    Raises:
        TrialError: Something durable was lost, something is torn, the service does not start, or its results are wrong.
    """
    folder.mkdir()
    made.build(cut, folder)
    try:
        promised = made.promised(cut)
        durable = promised if policy == DURABLE else made.synced(cut, COMMITS)
        check(folder, policy, promised, durable)
    except (AssertionError, TailraceError) as error:
        said = str(error)[:_SHOWN]
        raise TrialError(f"policy {policy!r}, {cut}: {type(error).__name__}: {said}") from error
    shutil.rmtree(folder)
