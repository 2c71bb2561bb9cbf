"""A chain of two apps, the first in nightly runs: what the second comes to is an oracle's, and so it is
rebuilt.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import append, done, live, live_on, rebuilt
from tests.runtime.bounded_run import read_all

WIDTH_MS = 60_000
NIGHT_MS = 86_400_000
KEYS = 8


class Reading(msgspec.Struct, frozen=True):
    key: str
    at: int


class Window(msgspec.Struct, frozen=True):
    key: str
    start: int
    count: int


first = tr.App("first", partitions=3)
_inputs = [
    first.topic(name, Reading, key="key", event_time="at", idle_after="1h") for name in ("left", "right")
]
_middle = first.topic("middle", Reading, key="key", event_time="at")


@first.process(*_inputs, order="arrival")
def again(event: Reading, ctx: tr.Context[str]) -> None:
    ctx.emit(_middle, Reading(other(event.key), event.at))


def make_second() -> tr.App:
    """The second app."""
    app = tr.App("second", partitions=3)
    followed = app.topic("middle", Reading, key="key", event_time="at", watermark="upstream", late="drop")
    windows = app.topic("windows", Window, key="key")

    @app.actor
    class Windows(tr.Actor):
        counts: dict[int, int] = tr.field(default_factory=dict)

        @tr.process(followed)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            start = event.at - event.at % WIDTH_MS
            self.counts[start] = self.counts.get(start, 0) + 1
            ctx.set_timer(start + WIDTH_MS - 1, f"end:{start}")

        @tr.on_timer("end")
        def end(self, ctx: tr.Context[str]) -> None:
            start = int(str(ctx.timer_name).partition(":")[2])
            ctx.emit(windows, Window(ctx.key, start, self.counts.pop(start)))

    return app


second = make_second()


def other(key: str) -> str:
    return f"o{(int(key[1:]) * 5 + 3) % KEYS}"


def night(number: int, count: int = 300) -> list[tuple[str, Reading]]:
    """The readings of half of an hour, with their topics: after the first minutes the right one has no more of them."""
    begin = number * NIGHT_MS
    return [
        (
            ("left", "right")[n % 2 if n < count // 5 else 0],
            Reading(f"k{n * 7 // 2 % KEYS}", begin + n * 1_800_000 // count),
        )
        for n in range(count)
    ]


def records(readings: list[tuple[str, Reading]]) -> list[Output]:
    return [Output(topic, one.key.encode(), msgspec.json.encode(one), one.at) for topic, one in readings]


def expected(readings: list[tuple[str, Reading]], before_ms: int = 1 << 60) -> Counter[Window]:
    """The oracle: the windows that end before an instant."""
    counts = Counter((other(one.key), one.at - one.at % WIDTH_MS) for _, one in readings)
    return Counter(
        Window(key, start, count) for (key, start), count in counts.items() if start + WIDTH_MS <= before_ms
    )


FIRST, SECOND = f"{__name__}:first", f"{__name__}:second"
NIGHTS = 4
READINGS = [one for number in range(NIGHTS) for one in night(number)]


def windows(folder: Path) -> Counter[Window]:
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return Counter(read_all(log, "windows", Window))


def emitted(folder: Path, order: str) -> Counter[Window]:
    """The windows that a rebuild of the second app emits; along the tape it has the rows of the service."""
    _, snapshot = done(folder, SECOND, order=order, outputs=f"parquet:{folder / order}")
    if order == "tape":
        assert [one.rows for one in rebuilt(snapshot)] == [one.rows for one in live(folder, second.plan())]
    again = lived.outputs(folder / order, snapshot, "windows")
    return Counter(msgspec.json.decode(one.value or b"", type=Window) for one in again)


@pytest.mark.parametrize("second", ["nightly", "reads along", "comes later", "never ran"])
def test_a_chain_comes_to_every_window_and_so_do_its_rebuilds(tmp_path: Path, second: str) -> None:
    """Every night some readings come, and the first app is run to the end of them."""
    for number in range(NIGHTS):
        append(tmp_path, records(night(number)), {"left": 3, "right": 3})
        live_on(tmp_path, FIRST)
        if second == "nightly":
            live_on(tmp_path, SECOND)
        elif second == "reads along" or (second == "comes later" and number == NIGHTS - 1):
            live_on(tmp_path, SECOND, ends=False)
    # A bounded run ends the last windows, to which another reading may belong. So does its rebuild in stages.
    wanted = expected(READINGS, 1 << 60 if second == "nightly" else READINGS[-1][1].at)
    if second != "never ran":
        assert windows(tmp_path) == wanted
        assert emitted(tmp_path, "tape") == wanted
    assert emitted(tmp_path, "stages") == wanted
    again = rebuilt(done(tmp_path, FIRST, order="tape")[1])
    assert [one.rows for one in again] == [one.rows for one in live(tmp_path, first.plan())]
