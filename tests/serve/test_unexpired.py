"""What has expired is not shown: as the task itself would have it at the same watermark and clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.query import QueryReader
from tailrace.serve.unexpired import Unexpired
from tailrace.state import MemoryStore
from tailrace.testing import Harness
from tests.serve.depot import AT, DAY, Arrival, Depot, Moment, Short, app, arrivals, moments

MINUTE = 60_000
MINUTE_DELTA = timedelta(minutes=1)


def fields(kept: Any) -> Any:
    if kept is None:
        return None
    names = ("count", "fresh", "seen", "by_what", "recent", "order")
    return {name: repr(getattr(kept, name)) for name in names}


@pytest.mark.parametrize("minutes", [0, 9, 10, 11, 12, 13])
def test_an_answer_is_the_state_of_a_task_that_has_advanced_as_far(minutes: int) -> None:
    """The rows are those of before; only the watermark and the clock by which they are judged are later."""
    with Harness(app, partitions=1, now_ms=AT) as harness:
        plan = harness.plan
        for minute in range(3):
            harness.advance_clock(AT + minute * MINUTE)
            harness.send(arrivals, Arrival("north", DAY + minute * MINUTE_DELTA, f"what {minute}"))
        kept = MemoryStore()
        kept.write(dict(harness._service.stores[0].scan(b"\x01", b"\xff")), b"")
        harness.advance_watermark(AT + minutes * MINUTE)
        harness.advance_clock(max(AT + 2 * MINUTE, AT + minutes * MINUTE))
        state = Unexpired(plan, kept)
        state.judge_by({"Depot": AT + minutes * MINUTE}, AT + minutes * MINUTE)
        answer = QueryReader(plan, 0, state).instance(Depot, "north")
        assert fields(answer) == fields(harness.state(Depot, "north"))
        assert [*state.scan(b"s", b"t", reverse=True)] == [*state.scan(b"s", b"t")][::-1]


@pytest.mark.parametrize("minutes", [9, 10, 14, 15])
@pytest.mark.parametrize("later", [False, True])
def test_a_key_is_there_as_long_as_anything_of_it_has_not_expired(minutes: int, later: bool) -> None:
    """With ``later`` an entry of its map, written five minutes later, is the last."""
    with Harness(app, partitions=1, now_ms=AT) as harness:
        harness.send(moments, Moment("now", DAY))
        if later:
            harness.send(moments, Moment("now", DAY + 5 * MINUTE_DELTA, 2))
        kept = MemoryStore()
        kept.write(dict(harness._service.stores[0].scan(b"\x01", b"\xff")), b"")
        harness.advance_watermark(AT + minutes * MINUTE)
        state = Unexpired(harness.plan, kept)
        reader = QueryReader(harness.plan, 0, state)
        state.judge_by({"Short": NO_WATERMARK}, 0)
        assert reader.instance(Short, "now") is not None
        state.judge_by({"Short": AT + minutes * MINUTE}, 0)
        is_there = reader.instance(Short, "now") is not None
        assert is_there == (harness.state(Short, "now") is not None) == (minutes < (15 if later else 10))
