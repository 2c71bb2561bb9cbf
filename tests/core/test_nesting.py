"""JSON is refused by its depth alone, exactly, wherever it is decoded."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest

from tailrace.core.values.nesting import DEEPEST, depth_test, is_packed_too_deep, is_too_deep


def made(random: Random, deep: int) -> Any:
    """A value of this depth, with brackets and quotes in its texts."""
    if not deep:
        return random.choice(("", '[{"', "\\", '\\"]', 'a"b', 1, None, [], {}))
    inner = made(random, deep - 1)
    return [made(random, 0), inner, "]"] if random.random() < 0.5 else {'"[': inner, "\\": made(random, 0)}


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@pytest.mark.one_seed_in(10)
def test_the_depth_is_that_of_the_values_whatever_is_in_texts(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        value = made(random, random.randrange(DEEPEST - 3, DEEPEST + 3))
        assert is_too_deep(json.dumps(value, indent=random.choice((None, 1))).encode()) == (
            depth_of(value) > DEEPEST
        )


def test_many_values_beside_one_another_are_not_deep() -> None:
    assert not is_too_deep(json.dumps([[[]] * 5_000, {"[": [{}] * 5_000}]).encode())
    assert is_too_deep(b"[" * 1_000_000)


class Tree(msgspec.Struct):
    inner: Tree | None = None


class Pair(msgspec.Struct):
    left: Leaf
    right: Leaf


class Leaf(msgspec.Struct):
    items: list[tuple[int, dict[str, float]]]


@pytest.mark.one_seed_in(10)
def test_the_depth_of_messagepack_is_the_same(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        value = made(random, random.randrange(DEEPEST - 3, DEEPEST + 3))
        assert is_packed_too_deep(msgspec.msgpack.encode(value)) == (depth_of(value) > DEEPEST)
        keys = msgspec.msgpack.encode({((),): value})
        assert is_packed_too_deep(keys) == (depth_of(value) + 1 > DEEPEST)


def test_messagepack_is_looked_at_only_where_the_type_allows_any_depth() -> None:
    assert depth_test("msgpack", Pair) is None
    for deep in (Tree, Any, dict[str, Any], list[Tree]):
        assert depth_test("msgpack", deep) is is_packed_too_deep
    for data in (
        b"\x91" * 1_000_000 + b"\xc0",
        b"\x91" * 990 + b"\xc0",
        b"\x92\x81\x80\xc0" + b"\x91" * 300 + b"\xc0",
    ):
        assert is_packed_too_deep(data)
    beside = [[[]] * 5_000, {"é" * 300: [{}] * 5_000}]
    assert not is_packed_too_deep(msgspec.msgpack.encode(beside))
    assert not is_packed_too_deep(msgspec.msgpack.encode(beside)[:-1]), "the decoder says what it is"
