"""Map and list state do what Python's dict and list do, across handlers, restarts and replays; and offer no
more than that.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    others: tr.MapState[str, list[int]]

    @tr.process(todo)
    def do(self, event: Do, ctx: tr.Context[str]) -> None:
        names = ("items", "entries", "others")
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


class MapModel(dict[Any, Any]):
    """A dict in the order of its keys."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().keys()))

    def __reversed__(self) -> Iterator[Any]:
        return iter(sorted(super().keys(), reverse=True))

    def keys(self) -> Any:
        return list(self)

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


def expected(codes: list[str]) -> list[str]:
    """What each expression gives on Python's own collections, where an item is nobody else's from the next
    event on.
    """
    said: list[str] = []
    model: dict[str, Any] = {"items": ListModel(), "entries": MapModel(), "others": MapModel()}
    for code in codes:
        if code != "RELOAD":
            said.append(seen(code, model))
            model = {name: type(one)(eval(repr(one))) for name, one in model.items()}
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
            "items.pop()",
            "items.popleft()",
            "list(reversed(items))",
            "list(items)",
            "items.clear()",
            "RELOAD",
            "items.extend(items)",
            "(items == list(items), len(items))",
        ]
    ),
)
name = st.sampled_from(["'a'", "'b'", "'c'", "'cc'", "'d'"])
dicts = st.dictionaries(name, value, max_size=3).map(
    lambda d: f"{{{', '.join(f'{k}: {v}' for k, v in d.items())}}}"
)
map_codes = st.one_of(
    st.builds("{}.__setitem__({}, {})".format, st.sampled_from(["entries", "others"]), name, value),
    st.builds("entries[{}].append({})".format, name, index),
    st.builds("entries.__delitem__({})".format, name),
    st.builds("entries.pop({}, None)".format, name),
    st.builds("(entries == {0}, {0} == entries, entries != {0})".format, dicts),
    st.sampled_from(
        [
            "list(reversed(entries))",
            "list(entries.items())",
            "entries.clear()",
            "entries == others",
            "(entries == dict(entries.items()), len(entries), 'c' in entries, entries == {1: 2})",
            "RELOAD",
        ]
    ),
)


@given(st.lists(list_codes, max_size=20))
def test_a_list_state_does_what_a_list_does(codes: list[str]) -> None:
    assert run(*codes, "list(items)") == expected([*codes, "list(items)"])


@given(st.lists(map_codes, max_size=20))
def test_a_map_state_does_what_a_dict_does_in_the_order_of_its_keys(codes: list[str]) -> None:
    assert run(*codes, "list(entries.items())") == expected([*codes, "list(entries.items())"])


def test_the_keys_of_a_map_are_reversed_in_the_order_of_their_encoding() -> None:
    put = [f"entries.__setitem__({key!r}, [{n}])" for n, key in enumerate(["b", "", "ab", "é", "a"])]
    forth, back = run(*put, "list(entries)", "list(reversed(entries))")[-2:]
    assert (forth, back) == ("['', 'a', 'ab', 'b', 'é']", "['é', 'b', 'ab', 'a', '']")


@pytest.mark.parametrize(
    "code",
    [
        "[entries.pop(key) for key in reversed(entries)]",
        "[entries.pop(key) for key in entries]",
        "[items.append([2]) for one in reversed(items)]",
        "[items.pop() for one in items]",
    ],
)
def test_what_gains_or_loses_entries_while_it_is_iterated_says_so(code: str) -> None:
    put = ["items.extend([[1], [2]])", "[entries.__setitem__(key, [1]) for key in 'abc']"]
    assert run(*put, code)[-1] == "RuntimeError"


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
