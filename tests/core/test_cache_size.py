"""The live instances of a task take no more memory than its setting allows, in whatever order keys come."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

import tailrace as tr
from tests.core.driven import Driven

LIMIT = 1 << 20
LEAST = 460
"""Bytes that are reckoned for an instance, whatever it holds."""
AT_ONCE = 300
"""Keys between two commits: what they need is allowed beyond the limit."""


class Event(msgspec.Struct, frozen=True):
    key: str
    text: str = ""


app = tr.App("sized", partitions=1)
events = app.topic("events", Event, key="key")


@app.actor
class Count(tr.Actor):
    count: int = 0
    text: str = ""

    @tr.process(events)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.text += event.text


class Run(Driven):
    """A task whose cache is small. It commits after each batch."""

    def __init__(self) -> None:
        super().__init__(app.plan(), cache_bytes=LIMIT)

    def batch(self, found: Sequence[Event]) -> None:
        self.take(*found)
        self.commit()

    def held(self) -> list[Count]:
        """The instances that are held."""
        table = self.table("Count")
        return [*table.live.values(), *table.old.values()]


@pytest.mark.parametrize("keys", [1_000, 2_000, 3_000, 4_000, 6_000, 10_000])
def test_keys_that_come_back_again_and_again_do_not_all_stay(keys: int) -> None:
    dice = random.Random(keys)
    run, counted = Run(), Counter[str]()
    for _ in range(60):
        drawn = [f"key-{dice.randrange(keys)}" for _ in range(AT_ONCE)]
        run.batch([Event(key) for key in drawn])
        counted.update(drawn)
        assert len(run.held()) * LEAST < LIMIT + AT_ONCE * LEAST
    table = run.table("Count")
    assert {key: table.load(key).count for key in counted} == counted


def test_instances_that_grow_count_as_what_they_have_become() -> None:
    run, drawn = Run(), 0
    for _ in range(70):
        run.batch([Event(f"key-{at % 1_000}", "x" * 100) for at in range(drawn, drawn + AT_ONCE)])
        drawn += AT_ONCE
    assert sum(len(one.text) for one in run.held()) < LIMIT
    table = run.table("Count")
    assert {len(table.load(f"key-{at}").text) for at in range(1_000)} == {2_100}
