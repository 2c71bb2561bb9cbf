"""What holds back each input of an app."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.history.status.holding import Held, Holding
from tests.runtime.joining import Service


def held(
    service: Service, name: str, partition: int = 0, is_owned: Callable[[str], bool | None] = lambda _: None
) -> Held | None:
    """What holds an operator of a service, as its worker sees it."""
    slot = service.worker.slots[partition]
    assert slot.partition is not None
    task = slot.partition.task
    (operator,) = [one.index for one in service.plan.operators if one.name == name]
    holding = Holding(service.plan, partition, service.log, is_owned)
    source = holding.lowest(task.watermarks, operator)
    return None if source is None else holding.why(source, task.watermarks, task.positions)
