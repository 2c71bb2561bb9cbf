"""What a query must not do, and what JSON cannot say, is an error and not a wrong answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import QueryError
from tailrace.core.values.json_values import as_json_value
from tailrace.testing import Harness


class Put(msgspec.Struct):
    key: str
    box: str
    at: int


class Box(msgspec.Struct):
    count: int = 0


app = tr.App("boxes", partitions=1)
puts = app.topic("puts", Put, key="key", event_time="at", out_of_order=0)


@app.actor
class Shelf(tr.Actor):
    boxes: tr.MapState[str, Box]
    parts: tr.ListState[list[int]]

    @tr.process(puts)
    def put(self, event: Put, ctx: tr.Context[str]) -> None:
        box = self.boxes.get(event.box, Box())
        box.count += 1
        self.boxes[event.box] = box
        self.parts.append([box.count])

    @tr.query
    def counted(self, name: str) -> int:
        return self.boxes[name].count + sum(sum(one) for one in self.parts)

    @tr.query
    def adds(self, name: str) -> int:
        self.boxes[name].count += 1_000
        return self.boxes[name].count

    @tr.query
    def adds_to_all(self) -> int:
        for name, box in self.boxes.items():
            box.count += 1_000 + len(name)
        return sum(box.count for box in self.boxes.values())

    @tr.query
    def adds_to_values(self) -> int:
        found = [*self.boxes.values()]
        found[0].count += 1_000
        return found[0].count

    @tr.query
    def adds_to_a_list(self) -> int:
        self.parts[0].append(1_000)
        return sum(self.parts[0])


@pytest.fixture
def harness() -> Harness:
    made = Harness(app)
    made.send(puts, Put("a", "x", 0), Put("a", "x", 1), Put("a", "y", 2))
    return made


def test_a_query_that_reads_entries_is_answered(harness: Harness) -> None:
    assert harness.query(Shelf, "a", "counted", "x") == 2 + (1 + 2 + 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("adds", ("x",)), ("adds_to_all", ()), ("adds_to_values", ()), ("adds_to_a_list", ())],
)
def test_one_that_changes_an_entry_in_place_is_refused(
    harness: Harness, name: str, arguments: tuple[Any, ...]
) -> None:
    with pytest.raises(QueryError, match="has changed the instance"):
        harness.query(Shelf, "a", name, *arguments)
    assert harness.query(Shelf, "a", "counted", "x") == 2 + (1 + 2 + 1)


@pytest.mark.parametrize("value", [{1: 10, "1": 20}, [{"a": {2: 1, "2": 2}}], {(1,): 1, "[1]": 2}])
def test_keys_that_are_one_in_json_are_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="the same text"):
        as_json_value(value)


def test_other_keys_are_texts() -> None:
    assert as_json_value({1: {2: [3, {"x": 4}]}, "1x": 5}) == {"1": {"2": [3, {"x": 4}]}, "1x": 5}
