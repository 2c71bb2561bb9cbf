"""``tailrace ab`` of an app whose actors send messages: first events compared with plain Python over the events."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from tailrace.core.rows import decode_envelope
from tests.history.rebuilding import lived
from tests.lab import riding
from tests.lab.in_process import comparison
from tests.lab.selling import version

RIDING = "tests.lab.riding:app"


@pytest.mark.parametrize("seed", range(2))
def test_first_events_are_those_of_the_events(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B takes a least fee, looks at bikes earlier, and counts one message twice; it sends what A sends."""
    events = riding.some_rides(seed)
    lived.append(tmp_path, riding.outputs(events), {"rides": 3})
    lived.live_on(tmp_path, RIDING)
    twice = Random(seed).choice(events)
    b = version(
        tmp_path,
        f"riding_{seed}",
        ("self.fees += event.km", "self.fees += max(event.km, 4)"),
        ("self.km % 100 > 80", "self.km % 100 > 70"),
        ("self.rides += 1", f"self.rides += 1 + (message.at == {twice.at})"),
        of=riding.__file__,
    )
    report, keys, outputs = comparison(monkeypatch, tmp_path, RIDING, b)
    assert (report.order, report.why, report.noise) == ("tape", "", [])

    offsets = {one.timestamp_ms: one.offset for one in lived.read(tmp_path, "rides")}
    (message,) = (
        one.offset
        for one in lived.read(tmp_path, "riding.inbox")
        if one.value and msgspec.msgpack.decode(decode_envelope(one.value)[2])["at"] == twice.at
    )
    first, fees, km = dict[str, int](), dict[str, float](), dict[str, int]()
    only_b = set[tuple[str, int]]()
    for one in sorted(events, key=lambda one: one.at):
        km[one.bike] = km.get(one.bike, 0) + one.km
        if one.km < 4:
            fees[one.bike] = fees.get(one.bike, 0) + 4 - one.km
        if 70 < km[one.bike] % 100 <= 80:
            only_b.add((one.bike, one.at))
        if one.km < 4 or (one.bike, one.at) in only_b:
            first.setdefault(one.bike, one.at)
    assert 0 < len(fees) < len(km)
    assert sorted((one["key"], one["field"], one["difference"]) for one in keys) == sorted(
        [*((bike, "fees", more) for bike, more in fees.items()), (twice.rider, "rides", 1.0)]
    )
    assert {(one["key"], round(one["time"].timestamp() * 1000)) for one in outputs} == only_b
    for row in (*keys, *outputs):
        at = first.get(row["key"], twice.at)
        topic, offset = ("rides", offsets[at]) if row["key"] in first else ("riding.inbox", message)
        place = row["first_topic"], row["first_offset"], round(row["first_time"].timestamp() * 1000)
        assert place == (topic, offset, at)
