"""Late events that an app routes to a topic which it reads itself are sends of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import ReplayDivergedError
from tailrace.core.records import Output
from tests.history.rebuilding import any_app
from tests.history.rebuilding.lived import append, done, fields, live_on, rebuilt

VALUES = {1_000_000: 1, 1_100_000: 10, 1_010_000: 100, 1_110_000: 1_000}
"""By time; the third comes behind the second."""


class Reading(msgspec.Struct):
    sensor: tr.Key[str]
    at: tr.EventTime[int]


def made(out_of_order: str) -> str:
    app = tr.App("lateness", partitions=2, version=out_of_order)
    late = app.topic("late-readings", Reading)
    readings = app.topic("readings", Reading, out_of_order=out_of_order, late=late)

    for name, topic in (("InTime", readings), ("Late", late)):
        _summing(app, name, topic)
    return any_app.place(app)


def _summing(app: tr.App, name: str, topic: tr.Topic[Reading, str]) -> None:
    @app.actor(name=name)
    class Sum(tr.Actor):
        total: int = 0

        @tr.process(topic)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.total += VALUES[event.at]


@pytest.mark.parametrize(
    ("then", "now", "wanted"), [("0s", "30m", {"InTime": 1111}), ("30m", "0s", {"InTime": 1011, "Late": 100})]
)
def test_each_event_counts_once_where_other_events_are_late_now(
    tmp_path: Path, then: str, now: str, wanted: dict[str, int]
) -> None:
    events = [Output("readings", b"x", msgspec.json.encode(Reading("x", at)), at) for at in VALUES]
    append(tmp_path, events, {"readings": 2})
    live_on(tmp_path, made(then))
    app = made(now)
    with pytest.raises(
        ReplayDivergedError, match="sends to 'late-readings' partition 0 is not what is recorded"
    ):
        done(tmp_path, app)
    _, snapshot = done(tmp_path, app, order="canonical")
    assert {actor: one["total"] for (actor, _), one in fields(rebuilt(snapshot)).items()} == wanted
