"""The order of inputs: by event time within a tolerance, never against the offsets, waiting only where it
must.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.declare.plan import InputPlan
from tailrace.core.engine.merge import Merge
from tailrace.core.records import Head, Refused


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


def inputs(*watermarks: bool) -> tuple[InputPlan, ...]:
    """The plans of inputs a, b, c..., with a watermark or without."""
    app = tr.App("merged", partitions=1)
    for name, watermark in zip("abcdef", watermarks, strict=False):
        topic = app.topic(name, Event, key="key", event_time="at", watermark=watermark)

        @app.process(topic, name=f"take-{name}")
        def take(event: Event, ctx: tr.Context) -> None: ...

    return app.plan().inputs


def heads(times: Sequence[int | None], first: int = 0) -> list[Head]:
    return [(offset, time, "k", None, None) for offset, time in enumerate(times, first)]


def runs(merge: Merge, most: int = 1 << 30) -> list[tuple[int, list[int | None]]]:
    taken = []
    while (run := merge.next_run(most)) is not None:
        taken.append((run[0], [head[1] for head in run[1]]))
    return taken


def test_the_least_event_time_goes_first_and_a_run_goes_on_within_the_tolerance() -> None:
    merge = Merge(inputs(True, True), tolerance_ms=10)
    merge.offer(0, heads([0, 25, 40]))
    merge.offer(1, heads([20, 21]))
    assert runs(merge) == [(0, [0, 25]), (1, [20, 21]), (0, [40])]
    merge = Merge(inputs(True, True), tolerance_ms=10)
    merge.offer(0, heads([0, 30, 40]))
    merge.offer(1, heads([29, 31]))
    assert runs(merge) == [(0, [0]), (1, [29]), (0, [30]), (1, [31]), (0, [40])]


def test_ties_go_by_the_inputs_names() -> None:
    merge = Merge(inputs(True, True), tolerance_ms=0)
    merge.offer(1, heads([5]))
    merge.offer(0, heads([5]))
    assert runs(merge) == [(0, [5]), (1, [5])]


def test_a_head_without_a_time_goes_at_once() -> None:
    merge = Merge(inputs(True, True), tolerance_ms=0)
    merge.offer(0, heads([5, 6]))
    merge.offer(1, [(0, None, None, Refused("undecodable", "no JSON"), None), *heads([1], 1)])
    assert runs(merge)[0] == (1, [None])


def test_an_input_with_something_unread_is_waited_for_and_others_are_not() -> None:
    merge = Merge(inputs(True, True))
    merge.offer(0, heads([5]))
    merge.unread(1, True)
    assert runs(merge) == []
    merge.unread(1, False)
    assert runs(merge) == [(0, [5])]


def test_reference_data_are_never_waited_for() -> None:
    merge = Merge(inputs(True, False))
    merge.offer(0, heads([5]))
    merge.unread(1, True)
    assert runs(merge) == [(0, [5])]


def test_a_run_is_no_longer_than_asked_for() -> None:
    merge = Merge(inputs(True))
    merge.offer(0, heads(range(5)))
    assert runs(merge, 2) == [(0, [0, 1]), (0, [2, 3]), (0, [4])]


@given(
    st.lists(st.lists(st.integers(0, 100), max_size=20), min_size=1, max_size=3),
    st.integers(0, 20),
    st.integers(1, 10),
)
def test_offsets_keep_their_order_and_a_run_never_passes_another_head_by_more_than_the_tolerance(
    times: list[list[int]], tolerance: int, most: int
) -> None:
    merge = Merge(inputs(*[True] * len(times)), tolerance)
    for number, one in enumerate(times):
        merge.offer(number, heads(one))
    at = [0] * len(times)
    while (run := merge.next_run(most)) is not None:
        number, taken = run
        others = [times[n][at[n]] for n in range(len(times)) if n != number and at[n] < len(times[n])]
        for position, head in enumerate(taken):
            assert head[0] == at[number] + position
            if position and others:
                assert head[1] is not None
                assert head[1] <= min(others) + tolerance
        if others:
            assert taken[0][1] is not None
            assert taken[0][1] <= min(others) + tolerance
        at[number] += len(taken)
    assert at == [len(one) for one in times]


def check_third(times: list[list[int]], tolerance: int, most: int) -> None:
    """The order of any two inputs is the same with a third beside them."""

    def taken(wanted: list[int]) -> list[tuple[str, int]]:
        merge = Merge(inputs(True, True, True), tolerance)
        for number in wanted:
            merge.offer(number, heads(times[number]))
        found: list[tuple[str, int]] = []
        while (run := merge.next_run(most)) is not None:
            found += [("abc"[run[0]], head[0]) for head in run[1]]
        return found

    everything = taken([0, 1, 2])
    for pair in ([0, 1], [0, 2], [1, 2]):
        names = {"abc"[number] for number in pair}
        assert taken(pair) == [one for one in everything if one[0] in names]


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=3, max_size=3),
    st.integers(0, 20),
    st.integers(1, 10),
)
def test_the_order_of_two_inputs_does_not_depend_on_a_third(
    times: list[list[int]], tolerance: int, most: int
) -> None:
    check_third(times, tolerance, most)
