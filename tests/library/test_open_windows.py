"""Windows that are open, and slices of sliding ones: by plain loops over all windows."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.testing import Harness
from tests.library.test_windows_options import FAR, Reading, rooms


@pytest.mark.parametrize(
    ("which", "wanted"),
    [
        (windows.tumbling(10), {100: 2}),
        (windows.sessions(10), {100: 2}),
        (windows.sliding(10, every=5), {95: 1, 100: 2, 105: 1}),
    ],
)
@pytest.mark.parametrize("lateness", [0, 10_000])
def test_windows_that_have_closed_are_not_open(which: Any, wanted: dict[int, int], lateness: int) -> None:
    app = tr.App("open", partitions=1)
    readings = app.topic("readings", Reading, time_range=FAR)
    options: Any = {"lateness": lateness} if lateness else {}

    @app.actor
    class Room(tr.Actor):
        hours: tr.Windows[Reading, int] = tr.windowed(which, agg.count(), **options)
        opened: dict[int, int] = tr.field(default_factory=dict)

        @tr.process(readings)
        def take(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.hours.add(event)
            self.opened = self.hours.open()

    with Harness(app) as h:
        h.send(readings, *(Reading("a", at, 1.0) for at in (1, 2, 100, 106)))
        state = h.state(Room, "a")
        assert state is not None
        assert state.opened == wanted


@pytest.mark.parametrize(
    ("size", "every", "offset"), [(9, 3, 0), (9, 6, 2), (10, 4, 1), (12, 12, 5), (7, 1, 0)]
)
def test_a_slice_knows_the_windows_that_hold_it(size: int, every: int, offset: int) -> None:
    sliding = windows.sliding(size, every=every, offset=offset)
    for time_ms in range(-40, 40):
        start, end = sliding.at(time_ms)
        assert start <= time_ms < end
        holding = [
            one
            for one in range(-80, 80)
            if (one - offset) % every == 0 and one <= start and end <= one + size
        ]
        assert holding == [
            one for one in range(-80, 80) if (one - offset) % every == 0 and one <= time_ms < one + size
        ]
        if holding:  # with an interval that leaves no gaps, some window holds each slice
            assert (sliding.first(end), sliding.last(end)) == (holding[0], holding[-1])


@pytest.mark.parametrize("lateness", [0, 1, 4, 25])
@pytest.mark.parametrize(("size", "every"), [(10, 5), (9, 6), (8, 2), (4, 1)])
def test_late_events_of_sliding_windows_are_those_of_a_loop_over_all_windows(
    size: int, every: int, lateness: int, seeds: range
) -> None:
    for seed in seeds:
        random = Random(seed)
        times = [
            max(0, now - random.choice((0, 0, 1, 3, 8, 20, 40)))
            for now in range(0, 90, random.choice((1, 2, 5)))
        ]
        counts, dropped, mark = dict[int, int](), 0, -(10**9)
        wanted = list[tuple[int, int, str]]()
        for time_ms in [*times, 10**6]:
            starts = [
                one for one in range(-size, time_ms + 1) if one % every == 0 and one <= time_ms < one + size
            ]
            if time_ms < 10**6:
                if all(one + size - 1 + lateness <= mark for one in starts):
                    dropped += 1
                    continue
                for one in starts:
                    before = counts.get(one, 0)
                    counts[one] = before + 1
                    if one + size - 1 <= mark < one + size - 1 + lateness:
                        wanted.append((one, counts[one], "correction" if before else "final"))
            closed = [one for one in sorted(counts) if mark < one + size - 1 <= time_ms - 1]
            wanted += [(one, counts[one], "final") for one in closed]
            mark = max(mark, time_ms - 1)
        app, readings, given = rooms()
        options: Any = {"lateness": lateness} if lateness else {}
        app.window("w", readings, windows.sliding(size, every=every), agg.count(), into=given, **options)
        with Harness(app, checked=False) as h:
            h.send(readings, *(Reading("a", one, 1.0) for one in times))
            h.end_of_input()
            assert [(one.start, one.value, one.kind) for one in h.emitted(given)] == wanted, seed
            assert h.dropped == dropped
