"""Map state equals a sorted dict: ranges, prefixes, both directions, failures, commits, restarts, expiries; in every configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Literal, cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sortedcontainers import SortedSet

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.handling import entries as entries_module
from tailrace.core.values.map_keys import map_key_codec_for
from tailrace.state import MemoryStore
from tailrace.testing import COMMIT, CRASH, RELOAD, Harness
from tests.core.driven import Driven

TTL_MS = 5

Op = tuple[str, str, list[Any]]
"""The map, the method (see ``act``), and its arguments."""


class Do(msgspec.Struct, frozen=True):
    at: int
    ops: list[Op]
    fails: Literal["", "in it", "after it"] = ""
    """Whether the handler fails, or the next one of the unit, when the entries have been sealed."""
    key: str = "a"


class Did(msgspec.Struct, frozen=True):
    seen: list[str]
    key: str = "a"


app = tr.App("ranges", partitions=1, on_error="dead-letter-all")
todo = app.topic("todo", Do, key="key", event_time="at")
done = app.topic("done", Did, key="key")


@app.actor
class Holder(tr.Actor):
    texts: tr.MapState[str, list[float]]
    pairs: tr.MapState[tuple[str, int], int]
    raw: tr.MapState[bytes, dict[str, int]]
    passing: tr.MapState[str, list[float]] = tr.field(ttl=TTL_MS)

    @tr.process(todo)
    def do(self, event: Do, ctx: tr.Context[str]) -> None:
        ctx.emit(done, Did([act(getattr(self, name), name, do, args) for name, do, args in event.ops]))
        if event.fails == "in it":
            raise ValueError("as it was asked to")


@app.actor
class Next(tr.Actor):
    @tr.process(todo)
    def do(self, event: Do, ctx: tr.Context[str]) -> None:
        if event.fails:
            raise ValueError("as it was asked to")


class Model(dict[Any, Any]):
    """A dict in the order of its keys, which notes the keys that are set."""

    def __init__(self) -> None:
        self.written: set[Any] = set()

    def __setitem__(self, key: Any, value: Any) -> None:
        self.written.add(key)
        super().__setitem__(key, value)

    def keys(self, start: Any = None, stop: Any = None, *, prefix: Any = None, reverse: bool = False) -> Any:
        def is_in(key: Any) -> bool:
            begins = prefix is None or key[: len(prefix)] == prefix
            return begins and (start is None or key >= start) and (stop is None or key < stop)

        return sorted(filter(is_in, super().keys()), reverse=reverse)

    def values(self, *args: Any, **more: Any) -> Any:
        return [self[key] for key in self.keys(*args, **more)]

    def items(self, *args: Any, **more: Any) -> Any:
        return [(key, self[key]) for key in self.keys(*args, **more)]

    def first(self, *args: Any, **more: Any) -> Any:
        return next(iter(self.items(*args, **more)), None)

    def last(self, *args: Any, **more: Any) -> Any:
        return self.first(*args, **more, reverse=True)

    def pop_first(self, *args: Any, **more: Any) -> Any:
        found = self.first(*args, **more)
        return found and (found[0], self.pop(found[0]))

    def clear(self, *args: Any, **more: Any) -> None:
        for key in self.keys(*args, **more):
            del self[key]

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, other: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # as a map state
        for key, value in other.items():
            self[key] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __reversed__(self) -> Iterator[Any]:
        return iter(self.keys(reverse=True))


def act(map_: Any, name: str, method: str, args: list[Any]) -> str:
    """What a method returns, as text. Arguments come as JSON."""
    key: Callable[[Any], Any] = {"pairs": tuple, "raw": str.encode}.get(name, str)  # type: ignore[assignment]
    value: Callable[[list[float]], Any] = {"pairs": len, "raw": lambda value: {"n": len(value)}}.get(
        name, list
    )

    def keyed(some: dict[str, Any]) -> dict[str, Any]:
        return {at: one if at == "reverse" or one is None else key(one) for at, one in some.items()}

    match method, args:
        case "put", [one, new]:
            map_[key(one)] = value(new)
            return ""
        case "setdefault", [one, new]:
            return repr(map_.setdefault(key(one), value(new)))
        case "update", [count]:
            map_.update({key(_key(name, number)): value([number]) for number in range(count)})
            return ""
        case "pop", [one]:
            return repr((key(one) in map_, map_.pop(key(one), None)))
        case "change", [one, how, new]:
            return repr(_change(map_.get(key(one)), how, new))
        case "while", [n, one, how, some]:
            return _while(map_, n, key(one), value([1.0]), how, keyed(some))
        case "len", []:
            same = dict(map_.items())
            equal = (map_ == same, same == map_, map_ != same, map_ == map_, map_ == {1: 2})
            return repr((len(map_), bool(map_), list(map_), list(reversed(map_)), equal))
        case _:
            (some,) = args
            found = getattr(map_, method)(**keyed(some))
            return repr(list(found) if method in ("keys", "values", "items") else found)


def _key(name: str, number: int) -> Any:
    return (f"{number % 3}", number) if name == "pairs" else f"n{number}"


def _change(value: Any, how: str, new: float) -> Any:
    if isinstance(value, dict):
        value["n"] = int(new)
    elif isinstance(value, list):
        match how:
            case "append":
                value.append(new)
            case "extend":
                value.extend([new] * 12)
            case "first" if value:
                value[0] = new
            case "same" if value:
                value[-1] = float(str(value[-1]))  # an equal object
            case "insert":
                value.insert(0, new)
            case "cut":
                del value[3:]
            case "cut and add":
                value[3:] = [new]
            case _:
                value.sort()
    return value


def _while(map_: Any, n: int, key: Any, value: Any, how: str, some: dict[str, Any]) -> str:
    """Changes the map in the middle of an iteration. A model's is a list, so it raises the error itself."""
    seen: list[Any] = []
    try:
        for number, one in enumerate(map_.keys(**some)):
            seen.append(one)
            before = len(map_)
            if number == n:
                if how == "put":
                    map_[key] = value
                elif how == "pop":
                    map_.pop(key, None)
                elif how == "look":
                    seen += [map_.first(), map_.last()]
                else:
                    map_[one] = value
            if isinstance(map_, Model) and before != len(map_):
                raise RuntimeError
    except RuntimeError:
        seen.append("RuntimeError")
    return repr(seen)


def expected(steps: list[Any]) -> list[str]:
    """What each method returns in a world of plain dicts."""
    maps: dict[str, Model] = {name: Model() for name in ("texts", "pairs", "raw", "passing")}
    expiries: dict[Any, int] = {}
    said: list[str] = []
    watermark = -1
    for step in steps:
        if not isinstance(step, Do):
            continue
        for key in [key for key, expiry in expiries.items() if expiry <= watermark]:
            del expiries[key]
            maps["passing"].pop(key, None)
        before = deepcopy(maps)
        seen = [act(maps[name], name, do, args) for name, do, args in step.ops]
        if step.fails:
            maps = before
        else:
            said += seen
            passing = maps["passing"]
            for key in [*passing]:
                if key in passing.written or passing[key] != before["passing"].get(key):
                    expiries[key] = step.at + TTL_MS
            expiries = {key: expiry for key, expiry in expiries.items() if key in passing}
        for one in maps.values():
            one.written.clear()
            for key, value in one.items():
                if isinstance(value, list):
                    one[key][:] = [float(item) for item in value]
            one.written.clear()
        watermark = step.at - 1
    return said


def run(steps: list[Any], *, checked: bool) -> list[str]:
    """The same of the actor."""
    with Harness(app, checked=checked) as h:
        h.run([(todo, step) if isinstance(step, Do) else step for step in steps])
        h.replay()
        h.dead_letters()  # some steps fail
        return [one for did in h.emitted(done) for one in did.seen]


texts = st.sampled_from(["", "a", "aa", "ab", "a\0", "b", "é", "n1", "n2"])
values = st.lists(st.sampled_from([0.0, 1, -0.0, 2.5]), max_size=12)


def of(name: str) -> st.SearchStrategy[Op]:
    keys: Any = texts
    prefixes: Any = texts
    if name == "pairs":
        keys = st.tuples(st.sampled_from(["", "a", "a\0", "b", "1"]), st.integers(-2, 2)).map(list)
        prefixes = keys | st.sampled_from([[], ["a"], ["b"], ["1"]])
    some = st.fixed_dictionaries({}, optional={"start": st.none() | keys, "stop": keys, "prefix": prefixes})
    ranges = st.fixed_dictionaries(
        {}, optional={"start": keys, "stop": keys, "prefix": prefixes, "reverse": st.booleans()}
    )
    hows = st.sampled_from(
        ["append", "append", "extend", "first", "same", "insert", "cut", "cut and add", "sort"]
    )
    return st.one_of(
        st.tuples(st.just(name), st.sampled_from(["put", "setdefault"]), st.tuples(keys, values).map(list)),
        st.tuples(
            st.just(name), st.just("change"), st.tuples(keys, hows, st.sampled_from([-0.0, 1, 2.5])).map(list)
        ),
        st.tuples(st.just(name), st.just("pop"), st.tuples(keys).map(list)),
        st.tuples(st.just(name), st.just("update"), st.tuples(st.sampled_from([1, 3, 40])).map(list)),
        st.tuples(st.just(name), st.sampled_from(["keys", "values", "items"]), st.tuples(ranges).map(list)),
        st.tuples(
            st.just(name), st.sampled_from(["first", "last", "pop_first", "clear"]), st.tuples(some).map(list)
        ),
        st.tuples(
            st.just(name),
            st.just("while"),
            st.tuples(st.integers(0, 3), keys, st.sampled_from(["put", "pop", "look", "same"]), ranges).map(
                list
            ),
        ),
        st.tuples(st.just(name), st.just("len"), st.just([])),
    )


ops = st.lists(st.sampled_from(["texts", "texts", "pairs", "raw", "passing"]).flatmap(of), max_size=6)
dos = st.builds(
    lambda ops, fails, after: (ops, fails, after),
    ops,
    st.sampled_from(["", "", "in it", "after it"]),
    st.integers(0, 4),
)


@st.composite
def histories(draw: Any) -> list[Any]:
    at, steps = 0, list[Any]()
    for one in draw(st.lists(dos | dos | dos | st.sampled_from([COMMIT, RELOAD, CRASH]), max_size=12)):
        if isinstance(one, tuple):
            at += one[2]
            steps.append(Do(at, one[0], one[1]))
        else:
            steps.append(one)
    whole: list[Op] = [(name, "items", [{}]) for name in ("texts", "pairs", "raw", "passing")]
    return [*steps, Do(at, whole), COMMIT, RELOAD, Do(at, whole)]


def texts_of(*operations: tuple[str, list[Any]], fails: Any = "") -> Do:
    return Do(0, [("texts", method, args) for method, args in operations], fails)


LONG = texts_of(("put", ["a", [0.0] * 12]), ("put", ["b", [1.0]]))
SHOWN = texts_of(("items", [{}]), ("first", [{}]))


@pytest.mark.parametrize("bounds", [(16, 8, 1024), (1, 0, 2)], ids=["as they are", "tiny"])
@pytest.mark.parametrize("checked", [True, False])
@example([LONG, texts_of(("pop", ["a"]), ("first", [{}]), fails="in it"), SHOWN])
@example([LONG, texts_of(("change", ["a", "append", 2]), fails="after it"), SHOWN])
@example([LONG, texts_of(("change", ["a", "first", -0.0])), SHOWN])
@given(histories())
def test_a_map_state_does_what_a_sorted_dict_does(
    checked: bool, bounds: tuple[int, int, int], steps: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, bound in zip(("_CHUNK", "_SHORT", "_KEEP_LIVE"), bounds, strict=True):
            patch.setattr(entries_module, name, bound)
        assert run(steps, checked=checked) == expected(steps)


def of_items(item: Any) -> Plan:
    """An actor with lists of these items, each event appends as many as it has operations."""
    one = tr.App("lists", partitions=1)
    topic = one.topic("todo", Do, key="key", event_time="at")

    def take(self: Any, event: Do, ctx: tr.Context[str]) -> None:
        del ctx
        for _ in event.ops:
            self.lists.setdefault("one", []).append(item(event.at))

    body = {
        "__annotations__": {"lists": tr.MapState[str, list[item]]},
        "__module__": __name__,
        "take": tr.process(topic)(take),
    }
    one.actor(name="Lists")(cast(Any, type(tr.Actor))("Lists", (tr.Actor,), body))
    return one.plan()


def test_what_an_older_type_wrote_is_encoded_as_a_whole_when_an_item_is_appended() -> None:
    older = msgspec.defstruct("Item", [("n", int)], frozen=True)
    newer = msgspec.defstruct("Item", [("n", int), ("unit", str, "m")], frozen=True)
    driven = Driven(of_items(older))
    driven.take(Do(0, [("", "", [])] * 20))
    driven.commit()
    driven.start(of_items(newer))
    for at in (1, 2):
        driven.take(Do(at, [("", "", [])]))
    (stored,) = [value for row, value in driven.commit().rows.items() if row.endswith(b"one")]
    assert stored is not None
    assert stored[1:] == msgspec.msgpack.encode([*[newer(0)] * 20, newer(1), newer(2)])


@pytest.mark.parametrize("size", [15, 16, 17, 65_534, 65_536])
def test_a_list_with_appended_items_is_stored_as_one_that_was_set(size: int) -> None:
    driven = Driven(of_items(int))
    for number in (size, 2, 1):
        driven.take(Do(7, [("", "", [])] * number))
    (stored,) = [value for row, value in driven.commit().rows.items() if row.endswith(b"one")]
    assert stored is not None
    assert stored[1:] == msgspec.msgpack.encode([7] * (size + 3))


class Counted(MemoryStore):
    """Counts the rows that scans read."""

    read = 0

    def scan(self, start: bytes, stop: bytes, /, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for one in super().scan(start, stop, reverse=reverse):
            self.read += 1
            yield one


@pytest.mark.parametrize(
    "ops",
    [
        [("pairs", "last", [{}])],
        [("pairs", "first", [{}]), ("pairs", "last", [{"prefix": ["a"]}])],
        [("pairs", "pop_first", [{}])],
        [("pairs", "clear", [{"start": ["a", 700], "stop": ["a", 703]}]), ("pairs", "put", [["a", 702], []])],
    ],
    ids=lambda ops: ops[0][1],
)
def test_a_scan_reads_what_is_in_its_range_and_not_what_is_pending_or_deleted(
    ops: list[Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = list[int]()

    def build(names: dict[bytes, None]) -> SortedSet[bytes]:
        built.append(len(names))
        return SortedSet(names)

    monkeypatch.setattr(entries_module, "SortedSet", build)
    store = Counted()
    driven = Driven(app.plan(), store)
    driven.take(*(Do(0, [("pairs", "put", [["a", number], []])]) for number in range(1000)))
    driven.commit()
    driven.take(*(Do(0, [("pairs", "put", [["a", number], []])]) for number in range(0, 2000, 2)))
    driven.take(*[Do(0, ops)] * 300)
    assert store.read < 300 * 6
    assert len(built) <= 1


def test_a_prefix_is_a_beginning_of_text_or_bytes_or_the_first_items_of_a_tuple() -> None:
    codec = map_key_codec_for(int)
    for wrong, prefix in (
        (codec, 1),
        (map_key_codec_for(tuple[str, int]), ("a", 1, 2)),
        (map_key_codec_for(tuple[str, int]), "a"),
    ):
        with pytest.raises(tr.UsageError, match="no prefix"):
            wrong.encode_prefix(prefix)
    with pytest.raises(tr.DurableValueError):
        map_key_codec_for(tuple[str, int]).encode_prefix((1,))
    with pytest.raises(tr.DurableValueError):
        map_key_codec_for(str).encode_prefix(b"a")
