"""Notices that a service logs when it starts, once for all of its processes.

circles                     an operator that takes a topic which depends on its own emits: feedback, which is never waited for
                            and never late. It follows from the shape of the app, and is easily overlooked
writers that do not run     other apps that have published watermarks for a topic which this app also writes: this app has
                            replaced them, or runs beside them. Readers of the topic wait for them until they are retired
the original of a copy      the same for the running app of which this one is a copy under another name (``--as``): for the
                            time when the copy replaces it
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import is_instant
from tailrace.core.engine.describe_rows import instant
from tailrace.core.names import transactional_id
from tailrace.history.retirement import publishers_of
from tailrace.history.status.holding import IsOwned
from tailrace.log.interface import Log

_log = logging.getLogger("tailrace.service")


def announce(plan: Plan, log: Log, is_owned: IsOwned, original: str = "") -> None:
    """Log the notices for an app that starts. ``original`` is the name of the app whose copy it is under another name.

    ``is_owned`` takes the transactional id of a task.
    """
    for one in plan.operators:
        if one.feedback:
            topics = " and ".join(one.feedback)
            _log.info(
                "%s takes %s from its own circle: this is feedback, which is never waited for and never "
                "late. Declare watermark=True on %s "
                "if its events should count",
                one.name,
                topics,
                topics,
                extra={"app": plan.app, "operator": one.name, "topics": list(one.feedback)},
            )
    for app, tasks in publishers_of(log).items():
        held = _held(plan, tasks.values())
        if app == plan.app or not held:
            continue
        if not any(is_owned(transactional_id(app, number)) for number in tasks):
            for topic, mark in held.items():
                _log.warning(
                    "%r is also written by the app %r, which is not running: readers that follow the topic "
                    "wait for it %s. If it "
                    "will not run again, retire it: tailrace retire %s",
                    topic,
                    app,
                    f"at {instant(mark)}" if is_instant(mark) else "before its first event",
                    app,
                    extra={"app": plan.app, "topic": topic, "other_app": app},
                )
        elif app == original:
            _log.info(
                "this app runs beside %r, and both write %s. To replace %r: stop it, then run tailrace retire %s",
                app,
                " and ".join(held),
                app,
                app,
                extra={"app": plan.app, "topics": list(held), "other_app": app},
            )


def _held(plan: Plan, tasks: Iterable[Mapping[str, int | None]]) -> dict[str, int]:
    """The topics that an app writes and tasks of another app hold back, with the lowest watermark of those tasks."""
    written = {one.name for one in plan.published}
    held: dict[str, int] = {}
    for said in tasks:
        for topic, mark in said.items():
            if topic in written and mark is not None:
                held[topic] = min(mark, held.get(topic, mark))
    return dict(sorted(held.items()))
