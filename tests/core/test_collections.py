"""List state does what Python's list does, across handlers, restarts and replays; map and list state offer no more than that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.declare.user_metrics import Metrics
from tailrace.testing import RELOAD, Harness


class Do(msgspec.Struct, frozen=True):
    key: str
    code: str


class Did(msgspec.Struct, frozen=True):
    key: str
    seen: str


app = tr.App("collections", partitions=1)
done = app.topic("done", Did, key="key")
todo = app.topic("todo", Do, key="key")


@app.actor
class Holder(tr.Actor):
    items: tr.ListState[list[int]]
    entries: tr.MapState[str, list[int]]

    @tr.process(todo)
    def do(self, event: Do, ctx: tr.Context[str]) -> None:
        names = ("items", "entries")
        ctx.emit(done, Did(ctx.key, seen(event.code, {name: getattr(self, name) for name in names})))


def seen(code: str, names: dict[str, Any]) -> str:
    """What an expression gives: a value, or the type of an error."""
    try:
        return repr(eval(code, dict(names)))
    except (IndexError, KeyError, ValueError, TypeError, RuntimeError) as error:
        return type(error).__name__


class ListModel(list[Any]):
    """A list with the two methods that a deque has besides."""

    def popleft(self) -> Any:
        return self.pop(0)

    def appendleft(self, value: Any) -> None:
        self.insert(0, value)


def expected(codes: list[str]) -> list[str]:
    """What each expression gives on Python's own collections, where an item is nobody else's from the next
    event on.
    """
    said: list[str] = []
    model = ListModel()
    for code in codes:
        if code != "RELOAD":
            said.append(seen(code, {"items": model}))
            model = ListModel(eval(repr(model)))
    return said


def run(*codes: str) -> list[str]:
    """What each expression gives, one event each. The replay checks state and outputs besides."""
    with Harness(app) as h:
        for code in codes:
            h.run([RELOAD] if code == "RELOAD" else [(todo, Do("a", code))])
        h.replay()
        return [one.seen for one in h.emitted(done)]


index = st.integers(-7, 7)
bound = st.none() | index
part = st.builds("slice({!r}, {!r}, {!r})".format, bound, bound, st.sampled_from([None, 1, 1, 2, -1, -2, 3]))
value = st.builds("[{}]".format, st.integers(0, 9))
values = st.lists(value, max_size=4).map(lambda some: f"[{', '.join(some)}]")
list_codes = st.one_of(
    st.builds("items[{}]".format, st.one_of(index.map(str), part)),
    st.builds("items[{}].append({})".format, index, index),
    st.builds("[one.append({}) for one in items[{}]]".format, index, part),
    st.builds("items.__setitem__({}, {})".format, index, value),
    st.builds("items.extend({})".format, values),
    st.builds("items.appendleft({})".format, value),
    st.builds("(items == {0}, {0} == items, items != {0})".format, values),
    st.sampled_from(
        [
            *("items.pop()", "items.popleft()", "list(reversed(items))", "list(items)"),
            *("items.clear()", "RELOAD", "items.extend(items)", "(items == list(items), len(items))"),
        ]
    ),
)


@given(st.lists(list_codes, max_size=20))
def test_a_list_state_does_what_a_list_does(codes: list[str]) -> None:
    assert run(*codes, "list(items)") == expected([*codes, "list(items)"])


@pytest.mark.parametrize(
    "code", ["[items.append([2]) for one in reversed(items)]", "[items.pop() for one in items]"]
)
def test_what_gains_or_loses_entries_while_it_is_iterated_says_so(code: str) -> None:
    assert run("items.extend([[1], [2]])", code)[-1] == "RuntimeError"


def test_a_nan_equals_nothing_not_even_where_it_is_still_the_same_object() -> None:
    app = tr.App("nan")
    topic = app.topic("todo", Do, key="key")
    nan, told = float("nan"), list[Any]()

    @app.actor
    class Numbers(tr.Actor):
        items: tr.ListState[float]
        entries: tr.MapState[str, float]

        @tr.process(topic)
        def do(self, event: Do, ctx: tr.Context[str]) -> None:
            self.items.append(nan)
            self.entries["a"] = nan
            told.append((self.items == [nan], self.entries == {"a": nan}))

    with Harness(app) as h:
        h.send(topic, Do("a", ""))
    assert told == [(False, False)]


def test_a_map_or_list_cannot_be_hashed() -> None:
    assert run("hash(items)", "hash(entries)") == ["TypeError", "TypeError"]


def test_a_list_says_which_index_is_out_of_range_and_what_is_no_index() -> None:
    strict = tr.App("strict")
    topic = strict.topic("todo", Do, key="key")

    @strict.actor
    class Strict(tr.Actor):
        items: tr.ListState[int]

        @tr.process(topic)
        def do(self, event: Do, ctx: tr.Context[str]) -> None:
            self.items[3] = 1

    with (
        Harness(strict) as h,
        pytest.raises(tr.HandlerError, match=r"items\[3\] is out of range: it has 0 items"),
    ):
        h.send(topic, Do("a", ""))
    assert (
        run("items['a']", "items.__setitem__(1.5, [1])", "items.__setitem__(slice(1), [1])")
        == ["TypeError"] * 3
    )


@pytest.mark.parametrize(
    ("kind", "documented"),
    [
        (
            tr.MapState,
            {"clear", "first", "get", "items", "keys", "last", "pop", "pop_first", "setdefault", "update"}
            | {"values"},
        ),
        (tr.ListState, {"append", "appendleft", "clear", "extend", "pop", "popleft"}),
        (Metrics, {"count", "gauge", "observe"}),
    ],
)
def test_what_a_handler_holds_has_the_documented_methods_and_none_of_the_engine(
    kind: type, documented: set[str]
) -> None:
    assert {name for name in dir(kind) if not name.startswith("_")} == documented
