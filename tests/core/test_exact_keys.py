"""A key has exactly its declared type, whatever was seen before: ``True == 1``, but they are not one key.

Python finds equal keys of different types under one entry of a dict. If such a key were only refused where
its instance is loaded, its fate would depend on the cache and on restarts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import BadRecordError
from tailrace.core.values.keys import key_codec_for
from tests.core.bench import Bench, header


class Color(StrEnum):
    RED = "red"


class Hit(msgspec.Struct):
    key: str
    at: int
    as_color: bool = False


def counting(make_key: Any, key_type: Any, on_error: Any = "dead-letter") -> tr.App:
    app = tr.App("shapes", partitions=1, on_error=on_error)
    hits = app.topic("hits", Hit, key=make_key, key_type=key_type, event_time="at")

    @app.actor
    class Count(tr.Actor):
        n: int = 0

        @tr.process(hits)
        def hit(self, event: Hit, ctx: tr.Context[Any]) -> None:
            self.n += 1

    return app


def color_or_text(event: Hit) -> Any:
    return Color(event.key) if event.as_color else event.key


def send(bench: Bench, *events: Hit) -> None:
    bench.send(*map(msgspec.json.encode, events))


PLAIN, COLORED = Hit("red", 1_000), Hit("red", 2_000, as_color=True)


@pytest.mark.parametrize("commits", [False, True])
def test_an_equal_key_of_another_type_is_refused_whether_or_not_its_instance_is_live(commits: bool) -> None:
    bench = Bench(counting(color_or_text, str))
    send(bench, PLAIN)
    if commits:
        bench.commit()
        bench.task = bench.new_task()
    send(bench, COLORED)
    bench.commit()
    (letter,) = bench.letters()
    assert header(letter, "reason") == "bad-key"
    assert bench.task.totals.refused == 1


@pytest.mark.parametrize(
    ("declared", "right", "wrong"),
    [
        (int, 1, [True, 1.0]),
        (str, "red", [Color.RED]),
        (tuple[int, str], (1, "red"), [(True, "red"), (1.0, "red"), (1, Color.RED), [1, "red"], (1,)]),
        (Color, Color.RED, ["red"]),
    ],
)
def test_only_the_exact_type_counts(declared: Any, right: Any, wrong: list[Any]) -> None:
    codec = key_codec_for(declared)
    assert codec.are_exact([right, right])
    for one in wrong:
        assert not codec.are_exact([right, one])
        with pytest.raises(BadRecordError):
            codec.encode(one)


def test_a_key_that_cannot_be_hashed_is_refused_with_its_type() -> None:
    bench = Bench(counting(lambda event: [event.key], str))
    send(bench, PLAIN)
    bench.commit()
    (letter,) = bench.letters()
    assert header(letter, "reason") == "bad-key"
    assert "list" in header(letter, "error")
