"""The proof: all that a service has committed is replayed along its tape, from an empty state, and compared.

Compared are every state row, the cut (positions, watermarks, counts), and every output: topic, key, value,
headers and timestamp, by the number that its task gave it. The changelog is folded as well, and must give the
same rows. The replay runs with the reloading of instances turned the other way, so a live object that is not
what its encoding says shows here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replaced

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import ReplayDivergedError
from tailrace.core.storage import Store
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.replay import replaying
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.log.interface import OneCommitLog
from tailrace.state.store_cut import decode_store_cut

__all__ = ["ReplayReport", "replay"]

_HINT = (
    "The handlers depend on what is not on the tape (a clock, randomness, a global, an object kept outside)."
)


def replay(plan: Plan, log: OneCommitLog, stores: Sequence[Store], settings: TaskSettings) -> ReplayReport:
    """Replay every partition, and compare. ``settings`` are those of the first run.
    Raises ReplayDivergedError: something differs; it names the first difference.
    """

    def live(partition: int) -> list[LiveState]:
        store = stores[partition]
        cut = None if store.cut is None else decode_store_cut(store.cut).core
        return [LiveState("the service", store, cut, indexed=True)]

    turned = replaced(settings, reload=not settings.reload)
    report = replaying.replay(plan, log, ReplayOptions(compare=True, settings=turned), live=live)
    if report.differences.count:
        raise ReplayDivergedError("; ".join(map(str, report.differences.shown[:3])), hint=_HINT)
    return report
