import base64
import datetime as dt
import json
import math
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import given

from tailrace.core.values.codec import ValueCodec
from tests.core.durable import Frozen, durable_values, naive, same


@given(durable_values())
def test_a_settled_value_is_a_fixed_point(typed: tuple[Any, Any]) -> None:
    codec = ValueCodec[Any](typed[0])
    data, settled = codec.settle(typed[1])
    assert codec.encode(settled) == data
    again = codec.decode(data)
    assert same(again, settled)
    assert same(codec.settle(again)[1], again)


def test_two_names_for_one_list_are_two_lists_after_a_restart() -> None:
    shared: list[str] = []
    settled = ValueCodec[Any](tuple[list[str], list[str]]).settle((shared, shared))[1]
    assert settled[0] is not settled[1]


ROUND_TRIP = """
import base64, datetime as dt, json, sys
from tailrace.core.values.codec import ValueCodec
from tests.core.test_codec import SAMPLES
given = json.load(sys.stdin)
print(json.dumps([
    base64.b64encode(codec.encode(codec.decode(base64.b64decode(data)))).decode()
    for codec, data in zip([ValueCodec(declared) for declared, _ in SAMPLES], given)
]))
"""
SAMPLES: list[tuple[Any, Any]] = [
    (dict[str, int], {name: at for at, name in enumerate(["the", "quick", "brown", "fox"])}),
    (dict[Decimal, str], {Decimal("1.5"): "a", Decimal(7): "b"}),
    (dt.datetime, naive(2020, 10, 25, 2, 30, fold=1)),
    (dt.datetime, dt.datetime(2020, 10, 25, 2, 30, tzinfo=dt.UTC)),
    (dt.time, dt.time(2, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
    (list[float], [math.nan, -0.0, 1e308]),
    (Frozen | None, Frozen("é", 5, 1.0)),
]


def test_the_bytes_are_the_same_under_another_hash_seed_and_time_zone() -> None:
    written = [ValueCodec[Any](declared).settle(value)[0] for declared, value in SAMPLES]
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "12345",
        "TZ": "Asia/Kathmandu",
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "framework")]),
    }
    ended = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP],
        input=json.dumps([base64.b64encode(data).decode() for data in written]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [base64.b64decode(text) for text in json.loads(ended.stdout)] == written
