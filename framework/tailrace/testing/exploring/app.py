"""``explore`` for an app without a harness of its own."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Unpack

from tailrace.core.declare.app import App
from tailrace.testing.exploring.exploration import ExploreOptions
from tailrace.testing.exploring.report import ExploreReport
from tailrace.testing.faults import Item
from tailrace.testing.harness import Harness


def explore(
    app: App,
    history: Iterable[Item],
    *,
    partitions: int | None = None,
    now_ms: int | datetime = 0,
    **options: Unpack[ExploreOptions],
) -> ExploreReport:
    """Run a history of events through an app under many schedules, and compare the results, key by key.

    ``history`` is a list of (topic, event) pairs and ``At`` values. ``partitions`` and ``now_ms`` are as for
    ``Harness``, ``options`` are the ``ExploreOptions``. Returns the report if nothing depends on the
    schedule. See ``Harness.explore``.

    Raises:
        ScheduleDependentError: A result depends on the schedule, and the app does not declare it.
    """
    with Harness(app, partitions=partitions, now_ms=now_ms) as harness:
        return harness.explore(history, **options)
