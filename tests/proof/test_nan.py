"""The bits of a NaN never reach state or outputs, and no handler finds them in its state; see ``canonical_nan``."""

from __future__ import annotations

import math
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

import tailrace as tr
from tailrace.core.values.canonical_nan import NAN_BYTES, canonical
from tailrace.core.values.codec import ValueCodec
from tailrace.core.values.types import is_fixed_point, normaliser
from tests.proof.operations import nan_of
from tests.proof.seeds import told

PLAIN = (0.0, -0.0, 1.5, math.inf, -math.inf, 1e308, -1e308, 5e-324)
_encode = msgspec.msgpack.Encoder().encode


# --- bytes ---


def value_of(random: Random, depth: int = 0) -> Any:
    """Any value of MessagePack, with NaNs, and texts that look like them."""
    size = random.choice((0, 1, 2, 20, 300))
    match random.randrange(9 if depth < 3 else 6):
        case 0 | 1:
            return nan_of(random)
        case 2:
            return random.choice(PLAIN)
        case 3:
            return random.choice((None, True, -1, -200, 2**63, -(2**63), 70_000, 300, 2**32))
        case 4:
            return (b"\xcb\xff\xf8\0\0\0\0\0\0" * size)[: random.randrange(9 * size + 1)]
        case 5:
            ext = msgspec.msgpack.Ext(5, b"\xcb\xff\xf8\0\0\0\0\0\0"[: random.choice((0, 1, 2, 3, 4, 8, 9))])
            return random.choice((ext, "\x7f\u02ff" * size, "k" * size))
        case 6:
            return {str(at): value_of(random, depth + 1) for at in range(size)}
        case _:
            return [value_of(random, depth + 1) for _ in range(size if depth < 2 else 2)]


def replaced(value: Any) -> Any:
    """The oracle: the same value, with one NaN."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, dict):
        return {key: replaced(one) for key, one in value.items()}
    return [replaced(one) for one in value] if isinstance(value, list) else value


@pytest.mark.one_seed_in(5)
def test_every_nan_of_a_message_and_no_other_byte_is_changed(seeds: range) -> None:
    for seed in seeds:
        with told(seed, []):
            value = value_of(Random(seed))
            data = _encode(value)
            assert canonical(data) == _encode(replaced(value))
            assert canonical(canonical(data)) == canonical(data)


@pytest.mark.parametrize("value", [*PLAIN, math.nan, "text", {"a": [math.inf, math.nan]}])
def test_bytes_without_another_nan_are_returned_as_they_are(value: Any) -> None:
    data = _encode(value)
    assert canonical(data) is data


# --- values, events and messages; the random programs put such NaNs into the state of their actors


class Inner(msgspec.Struct, frozen=True):
    x: float


class Open(msgspec.Struct):
    xs: list[float]
    by: dict[str, float]


class Circle(msgspec.Struct, tag=True):
    radius: float


class Dot(msgspec.Struct, tag=True):
    name: str


class Wide(Circle, tag="Circle"):
    """Written like a Circle in a field of one."""


class Point(NamedTuple):
    name: str
    y: float


OTHER = -math.nan
DURABLE: list[tuple[Any, Any]] = [
    (float, OTHER),
    (float | None, OTHER),
    (float | str, OTHER),
    (list[float], [OTHER, -0.0]),
    (tuple[float, ...], (OTHER, -math.inf, OTHER)),
    (tuple[float, int], (OTHER, 1)),
    (dict[str, float], {"a": OTHER}),
    (dict[str, list[float]], {"a": [OTHER]}),
    (Inner | None, Inner(OTHER)),
    (list[Inner], [Inner(OTHER)]),
    (Open, Open([OTHER], {"a": OTHER})),
    (Point, Point("p", OTHER)),
    (list[Circle | Dot], [Circle(OTHER), Dot("d"), Wide(OTHER)]),
]
EMITTED: list[tuple[Any, Any]] = [
    *DURABLE,
    (dict[float, int], {OTHER: 1, 2.0: 2}),
    (Any, {"deep": [OTHER, b"\xcb\xff\xf8"]}),
]


@pytest.mark.parametrize(("declared", "value"), DURABLE)
def test_a_settled_value_has_the_canonical_nan(declared: Any, value: Any) -> None:
    data, settled = ValueCodec[Any](declared).settle(value)
    assert NAN_BYTES in data
    assert _encode(settled) == data == canonical(data)
    if is_fixed_point(declared):  # then it is not decoded, but guarded
        assert _encode(normaliser(declared)(value)) == data


@pytest.mark.parametrize(("declared", "value"), EMITTED)
def test_an_event_or_message_has_no_other_bits_than_those_of_the_canonical_nan(
    declared: Any, value: Any
) -> None:
    event = msgspec.defstruct("Event", [("key", str), ("value", declared)])
    data = tr.App("nans").topic("events", event, key="key", format="msgpack").encode(event("a", value))
    assert NAN_BYTES in data
    assert canonical(data) == data
