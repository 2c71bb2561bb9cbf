"""The watermarks that a task publishes for its topics and channels; see ``watermarks``.

No event up to them will follow.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.task import Task


def publications(task: Task) -> dict[str, int | None]:
    """The watermarks of a task's next commit, by topic and channel; None if it holds no reader back."""
    return published_by(task.plan, {one.index: task.published_ms(one.index) for one in task.plan.operators})


def published_by(plan: Plan, operators: Mapping[int, int | None]) -> dict[str, int | None]:
    """The published watermarks, given the operators' watermarks; None: the operator holds no reader back."""
    found: dict[str, int | None] = {}
    for one in plan.published:
        holding = [mark for writer in one.writers if (mark := operators[writer]) is not None]
        mark = min(holding, default=None)
        found[one.name] = mark if mark is None or mark == NO_WATERMARK else mark - one.out_of_order_ms
    return found
