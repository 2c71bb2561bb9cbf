"""What a service says of itself when it starts, once for all of its processes.

circles                     an operator that takes a topic which follows from what it emits itself: feedback, which is neither
                            waited for nor late. That is so by the shape of the app, and easily overlooked
circles between two apps    each reads a topic of the other, and neither has come to any event
writers that nobody runs    other apps that have published for a topic which this app writes as well: as this app has taken
                            their place, or runs beside them. Who follows the topic waits for them until they are retired
the app it is a copy of     the same of an app that runs, where this one is run under another name (``--as``): for the
                            moment at which it is to take its place
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import is_instant
from tailrace.core.engine.describe_rows import instant
from tailrace.history.retirement import publishers_of
from tailrace.history.status.holding import IsOwned, circle_with
from tailrace.history.upstream_watermarks import transactional_id
from tailrace.log.interface import Log

_log = logging.getLogger("tailrace.service")


def announce(plan: Plan, log: Log, is_owned: IsOwned, original: str = "") -> None:
    """Say what there is to say of an app that starts. ``original`` is the name of the app that it is another name of.

    ``is_owned`` takes the transactional id of a task.
    """
    for one in plan.operators:
        if one.feedback:
            topics = " and ".join(one.feedback)
            _log.info(
                "%s takes %s from its own circle: it is feedback, neither waited for nor late; declare watermark=True on %s "
                "if its events should count",
                one.name,
                topics,
                topics,
                extra={"app": plan.app, "operator": one.name, "topics": list(one.feedback)},
            )
    _announce_circles(plan, log)
    for app, tasks in publishers_of(log).items():
        held = _held(plan, tasks.values())
        if app == plan.app or not held:
            continue
        if not any(is_owned(transactional_id(app, number)) for number in tasks):
            for topic, mark in held.items():
                _log.warning(
                    "%r is also written by the app %r, which nobody runs: whoever follows the topic waits for it %s. If it "
                    "will not come again, say so: tailrace retire %s",
                    topic,
                    app,
                    f"at {instant(mark)}" if is_instant(mark) else "before its first event",
                    app,
                    extra={"app": plan.app, "topic": topic, "other_app": app},
                )
        elif app == original:
            _log.info(
                "it runs beside %r, and both write %s. If it is to take its place: stop that one, then tailrace retire %s",
                app,
                " and ".join(held),
                app,
                extra={"app": plan.app, "topics": list(held), "other_app": app},
            )


def _announce_circles(plan: Plan, log: Log) -> None:
    """Name the apps that wait for this one where this one waits for them: that is seen once both have committed."""
    followed = {one.name for one in plan.inputs if one.watermark == "upstream" and not one.own}
    for (topic, publisher), mark in sorted(log.publications().items()):
        if topic in followed and mark is not None and (circle := circle_with(plan, log, publisher, mark)):
            followed.discard(topic)
            _log.warning(
                "%r waits for what its writers publish%s",
                topic,
                circle,
                extra={"app": plan.app, "topic": topic},
            )


def _held(plan: Plan, tasks: Iterable[Mapping[str, int | None]]) -> dict[str, int]:
    """Of the topics that an app writes, those that tasks of another hold, with the lowest watermark of these."""
    written = {one.name for one in plan.published}
    held: dict[str, int] = {}
    for said in tasks:
        for topic, mark in said.items():
            if topic in written and mark is not None:
                held[topic] = min(mark, held.get(topic, mark))
    return dict(sorted(held.items()))
