"""The bits of a NaN never reach state or outputs, and no handler finds them in its state; see ``canonical_nan``."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.core.values.canonical_nan import NAN_BYTES, canonical
from tailrace.core.values.codec import ValueCodec
from tests.history.rebuilding import lived
from tests.proof import nans
from tests.proof.nan_checks import check_seed, check_warm
from tests.proof.nans import Event, nan_of
from tests.proof.seeds import START_MS, told

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


# --- state, messages, outputs ---


@pytest.mark.one_seed_in(5)
def test_the_bits_of_a_nan_reach_neither_state_nor_outputs_nor_a_later_handler(seeds: range) -> None:
    made = 0
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            made += check_seed(seed, trace)
    assert made > len(seeds), "hardly any outputs"


def test_a_rebuilt_snapshot_has_the_bytes_of_the_service(tmp_path: Path) -> None:
    for day in range(2):
        events = [Event("ab"[at % 2], START_MS + day * 100 + at) for at in range(11)]
        outputs = [Output("events", None, msgspec.json.encode(one), one.at) for one in events]
        lived.append(tmp_path, outputs, {"events": 1})
        lived.live_on(tmp_path, "tests.proof.nans:app")
    live = lived.live(tmp_path, nans.app.plan())
    assert sum(NAN_BYTES in value for _, value in live[0].rows) > 10
    report, snapshot = lived.done(tmp_path, "tests.proof.nans:app")
    assert [one.rows for one in lived.rebuilt(snapshot)] == [one.rows for one in live]
    assert report.outputs == 44, report


# --- CPython's own ---


def test_a_live_run_of_cold_bytecode_equals_its_replay_by_warm_bytecode() -> None:
    check_warm()


# --- one value ---


@pytest.mark.parametrize("declared", [float, float | None, list[float], tuple[float, ...], dict[str, float]])
def test_a_settled_value_has_the_canonical_nan(declared: Any) -> None:
    negative = -math.nan
    value: Any = {"a": negative} if declared == dict[str, float] else [negative]
    data, settled = ValueCodec[Any](declared).settle(
        value if declared not in (float, float | None) else negative
    )
    assert NAN_BYTES in data
    assert _encode(settled) == data
