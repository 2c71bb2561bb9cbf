"""``ctx.emit(..., at=...)``: the timestamp that a handler gives to a record, and who goes by it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import HandlerError
from tailrace.testing import Harness

YEAR_2200_MS = 7_258_118_400_000


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int


def emitting(at: Callable[[tr.Context[str]], Any]) -> tr.App:
    """Emits each step to ``plain``, whose event time is the timestamp, with the timestamp ``at``; counted by
    ``Taker``.
    """
    app = tr.App("emitting", partitions=1)
    steps = app.topic("steps", Step, key="key", event_time="at")
    plain = app.topic("plain", Step, key="key", event_time=tr.RECORD_TIME)

    @app.process(steps)
    def forward(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(plain, event, at=at(ctx))

    @app.actor
    class Taker(tr.Actor):
        times: list[int] = []
        late: int = 0

        @tr.process(plain)
        def take(self, event: Step, ctx: tr.Context[str]) -> None:
            self.times.append(ctx.event_time)
            self.late += ctx.is_late

    return app


def run(app: tr.App, *times: int) -> tuple[list[int], Any, int]:
    """The timestamps in ``plain``, the taker, and how many were emitted behind what was published."""
    plan = app.plan()
    steps, plain = plan.topics["steps"], plan.topics["plain"]
    with Harness(app) as h:
        for at in times:
            h.send(steps, Step("a", at))
        h.replay()
        taking: Any = plan.actors[0].cls
        taker: Any = h.state(taking, "a")
        return [record.timestamp_ms for record in h.log.read(plain.name)], taker, sum(h.behind.values())


def test_a_record_has_the_time_of_its_cause_unless_the_handler_gives_it_another() -> None:
    assert run(emitting(lambda _: None), 1_000, 2_000)[0] == [1_000, 2_000]
    assert run(emitting(lambda ctx: ctx.event_time + 7), 1_000, 2_000)[0] == [1_007, 2_007]


@pytest.mark.parametrize(
    "at",
    [
        datetime(1970, 1, 1, 0, 1, 0, 1_999, tzinfo=UTC),
        datetime(1970, 1, 1, 2, 1, 0, 1_000, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_an_aware_datetime_is_rounded_down_to_a_millisecond(at: datetime) -> None:
    assert run(emitting(lambda _: at), 1_000)[0] == [60_001]


def test_who_goes_by_the_timestamp_is_told_that_time() -> None:
    _, taker, behind = run(emitting(lambda ctx: ctx.event_time + 500), 1_000, 2_000)
    assert taker.times == [1_500, 2_500]
    assert (taker.late, behind) == (0, 0)


def test_a_timestamp_behind_the_published_watermark_is_counted_and_late_for_the_reader() -> None:
    # Published after the first step: 999. What is emitted at 999 then is behind it, at 1000 it is not.
    assert run(emitting(lambda ctx: min(ctx.event_time, 1_000)), 1_000, 1_001)[2] == 0
    _, taker, behind = run(emitting(lambda ctx: 999 if ctx.event_time > 1_000 else 1_000), 1_000, 1_001)
    assert taker.times == [1_000, 999]
    assert (taker.late, behind) == (1, 1)


def test_a_topic_with_a_time_of_its_own_is_judged_by_that_and_not_by_the_timestamp() -> None:
    app = tr.App("own", partitions=1)
    steps = app.topic("steps", Step, key="key", event_time="at")
    out = app.topic("out", Step, key="key", event_time="at")

    @app.process(steps)
    def forward(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event, at=0)

    with Harness(app) as h:
        h.send(steps, Step("a", 1_000))
        emitted = h.send(steps, Step("a", 2_000))
        assert [one.timestamp_ms for one in emitted] == [0]
        assert h.behind == {}
        h.replay()


@pytest.mark.parametrize("at", [-1, YEAR_2200_MS + 1, 1_700_000_000_000_000])
def test_a_timestamp_outside_of_the_times_of_the_topic_is_refused(at: int) -> None:
    with pytest.raises(HandlerError, match="outside of 0 to") as caught:
        run(emitting(lambda _: at), 1_000)
    assert "time_range" in str(caught.value)


@pytest.mark.parametrize("at", [1.5, True, "now", datetime(2020, 1, 1)])  # noqa: DTZ001  # what is refused
def test_what_is_no_instant_is_refused(at: Any) -> None:
    with pytest.raises(HandlerError, match=r"not an instant|no time zone"):
        run(emitting(lambda _: at), 1_000)
