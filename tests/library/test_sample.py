"""``app.sample``: a hash of a value decides, the same in every run."""

from __future__ import annotations

from hashlib import blake2b
from itertools import count
from math import nextafter
from random import Random
from typing import Any

import msgspec

import tailrace as tr
from tailrace.testing import Harness
from tests.library.oracle_rolling import Event

EVENTS = [Event(f"k{n % 7}", n, f"i{n % 1_000}", float(n)) for n in range(3_000)]


def sampled(
    by: Any, history: list[Event] = EVENTS, *, partitions: int = 1, explore: bool = False, **options: Any
) -> list[Event]:
    app = tr.App("samples", partitions=partitions)
    events = app.topic("events", Event, key_type=str)
    chosen = app.topic("chosen", Event, key_type=str)

    @app.process(app.sample("some", events, by=by, **options))
    def publish(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(chosen, event)

    with Harness(app, checked=explore) as h:
        h.send(events, *history)
        h.replay()
        if explore:
            assert h.explore(schedules=5).equal
        return sorted(h.emitted(chosen), key=lambda one: one.at)


def test_events_with_one_value_are_all_chosen_or_none() -> None:
    found = sampled("id", fraction=0.1)
    ids = {one.id for one in found}
    assert found == [one for one in EVENTS if one.id in ids]
    assert 70 < len(ids) < 130


def test_the_same_values_are_chosen_in_every_run_and_order_of_arrival() -> None:
    found = sampled("id", fraction=0.1)
    shuffled = EVENTS.copy()
    Random(1).shuffle(shuffled)
    assert sampled("id", shuffled, partitions=3, fraction=0.1) == found
    assert sampled(lambda one: one.id, fraction=0.1) == found
    assert sampled("id", EVENTS[:200], explore=True, fraction=0.1) == [one for one in found if one.at < 200]
    # Data that was sampled by an earlier release belongs together with data that is sampled by this one.
    assert sorted({one.id for one in found}, key=lambda one: int(one[1:]))[:4] == PINNED


PINNED = ["i0", "i1", "i8", "i12"]


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    found = [{one.id for one in sampled("id", fraction=of)} for of in (0.01, 0.3, 0.7, 1)]
    assert found[0] < found[1] < found[2] < found[3]
    assert found[3] == {one.id for one in EVENTS}
    assert len(sampled(("id", "amount"), fraction=1.0)) == len(EVENTS)
    assert 200 < len(sampled(("id", "amount"), fraction=0.1)) < 400, "of single events"


def test_a_value_is_chosen_if_its_hash_is_below_the_fraction() -> None:
    """Of a value whose hash is a float exactly: not at this fraction, but at the next one."""
    hashes = (
        int.from_bytes(blake2b(msgspec.msgpack.encode(n), digest_size=8).digest(), "big") for n in count()
    )
    number, found = next((n, one) for n, one in enumerate(hashes) if one % (1 << 11) == 0 and one > 1 << 63)
    bound = found / (1 << 64)
    assert bound * (1 << 64) == found
    history = [Event("k", 1, "i", float(number))]
    by: Any = lambda one: int(one.amount)  # noqa: E731
    assert sampled(by, history, fraction=bound) == []
    assert sampled(by, history, fraction=nextafter(bound, 1)) == history
