"""Operators that pass events on give the same whatever another handler does to these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.testing import Harness


class Changing(msgspec.Struct, tr.Keyed[str]):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int = 0


class Frozen(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    value: int = 0
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None: ...


def value_of(event: Any) -> int:
    return event.value  # type: ignore[no-any-return]


PASSING: dict[str, Callable[[Any, Any], Any]] = {
    "count": lambda app, a: app.window("w", a, windows.tumbling(9), agg.count()),
    "top": lambda app, a: app.top("w", a, 3, by="value", of="value"),
    "top of a window": lambda app, a: app.window("w", a, windows.tumbling(9), agg.top(3, value_of, value_of)),
    "dedupe": lambda app, a: app.dedupe("w", a, by="value", within=9),
    "limit": lambda app, a: app.limit("w", a, 3, per=9),
}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("first", [False, True])
def test_an_event_that_another_handler_changes_gives_the_same_where_it_is_not_kept(
    name: str, first: bool
) -> None:
    def results(crash: bool) -> list[Any]:
        app = tr.App("kept", partitions=1)
        a, given, out = app.topic("a", Changing), app.topic("given", Frozen), None

        def change(event: Any, ctx: Any) -> None:
            event.value = 99

        def give(one: Any, ctx: Any) -> None:
            ctx.emit(given, Frozen(ctx.key, ctx.event_time, 0, (repr(one).replace("value=99", "value=1"),)))

        if not first:
            out = PASSING[name](app, a)
        change.__annotations__ = give.__annotations__ = {}
        app.process(a, name="change", emits=())(change)
        out = PASSING[name](app, a) if out is None else out
        app.process(out, name="give", emits=(given,))(give)
        with Harness(app) as h:
            for at in range(20):
                h.send(a, Changing("k", at, 1))
                if crash:
                    h.crash()
            h.end_of_input()
            h.replay()
            found: list[Any] = h.emitted(given)
            return found

    assert results(crash=False) == results(crash=True)
