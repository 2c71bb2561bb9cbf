"""What every service is put through: faults anywhere in its input, and a replay of its whole tape.

This is for what goes by event time. Processing time that was not committed has not been: who does it again is told another.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tailrace import App, Topic
from tailrace.testing import COMMIT, CRASH, REBALANCE, RELOAD, Harness, Item, Out

Settled = dict[tuple[str, Any], list[Any]]
"""The events that were emitted, per topic and key: what is left once it does not matter which task was faster."""

Survives = Callable[..., Settled]


def settled(outs: Sequence[Out]) -> Settled:
    by_key: Settled = {}
    for out in outs:
        by_key.setdefault((out.topic, out.key), []).append((out.event, out.timestamp_ms))
    return by_key


@pytest.fixture
def survives() -> Survives:
    """Runs items undisturbed, then with every fault at every place; all runs must come to the same, which is returned.

    Each run is replayed from nothing, and its state and outputs compared byte for byte. ``but`` is a topic in which the
    events of a key come from several tasks, whose order is nobody's promise.
    """

    def check(app: App, items: Sequence[Item], *, but: Topic[Any, Any] | None = None) -> Settled:
        def run(items: Sequence[Item], **how: Any) -> Settled:
            with Harness(app, **how) as h:
                outs = h.run([*items, COMMIT])
                h.replay()
                return settled([out for out in outs if but is None or out.topic != but.name])

        expected = run(items)
        for how in ({"reload": True}, {"slice_size": 1}, {"partitions": 1}, {"state": "rocksdb"}):
            assert run(items, **how) == expected, how
        for fault in (CRASH, RELOAD, REBALANCE):
            for place in range(len(items) + 1):
                disturbed = [*items[:place], fault, *items[place:]]
                assert run(disturbed) == expected, f"{fault} at {place}"
                committed = [*items[:place], COMMIT, *items[place:], fault]
                assert run(committed) == expected, f"a commit at {place}, and {fault} in the end"
        return expected

    return check
