"""The baseline of the core: the same work written by hand for the one handler of `apps.counting`.

It keeps a struct per key in a dict, detects late events, advances the watermark, and makes the same outputs as the task (the
test of the benchmarks compares them). It does not undo failures, check types, or look for timers, and it has no tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from benchmarks.apps import Event, Total
from benchmarks.drive import SLICE

Made = tuple[str, bytes, bytes, int]
Raw = tuple[str, Total, int]


class State(msgspec.Struct, gc=False):
    count: int = 0
    total: int = 0


def encoding_loop(events: Sequence[Event], drop: Callable[[list[Made]], None] = list[Made].clear) -> int:
    """Make encoded outputs for a log: topic, key bytes, value bytes, timestamp. Returns the number of late events."""
    states: dict[str, State] = {}
    outputs: list[Made] = []
    encode = msgspec.json.Encoder(order="deterministic").encode
    watermark, late = -(1 << 62), 0
    for event in events:
        time_ms = event.at
        if time_ms <= watermark:
            late += 1
        key = event.key
        state = states.get(key)
        if state is None:
            state = states[key] = State()
        state.count += 1
        state.total += event.value
        total = Total(event.key, state.count, state.total)
        outputs.append(("totals", total.key.encode(), encode(total), time_ms))
        if time_ms - 1_001 > watermark:
            watermark = time_ms - 1_001
        if len(outputs) >= SLICE:
            drop(outputs)
    drop(outputs)
    return late


def bare_loop(events: Sequence[Event]) -> int:
    """The same loop, but the outputs stay objects. These could not be written to a log."""
    states: dict[str, State] = {}
    outputs: list[Raw] = []
    watermark, late = -(1 << 62), 0
    for event in events:
        time_ms = event.at
        if time_ms <= watermark:
            late += 1
        key = event.key
        state = states.get(key)
        if state is None:
            state = states[key] = State()
        state.count += 1
        state.total += event.value
        outputs.append(("totals", Total(event.key, state.count, state.total), time_ms))
        if time_ms - 1_001 > watermark:
            watermark = time_ms - 1_001
        if len(outputs) >= SLICE:
            outputs.clear()
    return late
