"""A run that observes some keys shows of them what a run of all keys shows: first events are searched by such runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.core.engine.observer import Call, Observer, key_now
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import RawOutput
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tests.cast.programs import lived
from tests.proof.apps import Variant
from tests.proof.seeds import told, variant_of


class Records(Observer):
    """Records each call, what it returns with, and the rows of its key after it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def returned(self, call: Call, outputs: Sequence[RawOutput], /) -> None:
        """See ``Observer``."""
        one = call.moment
        rows = None if call.actor is None else sorted(key_now(call.cells, call.actor, one.key).items())
        times = one.event_time, one.watermark, one.now, one.is_late
        self.calls.append((one.key, call.handler, one.input, one.at, times, [*outputs], rows))


def ordered(random: Random) -> Variant:
    """A variant whose actors handle events in the order of event time."""
    return variant_of(random, inputs=random.choice((1, 2)))._replace(order="event-time")


@pytest.mark.one_seed_in(25)  # one takes 1.5 s
def test_the_calls_of_some_keys_are_those_among_all(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if events of other keys wait for their turn, and the watermark goes up to them when all inputs are idle."""
    monkeypatch.setattr("tests.proof.seeds.variant_of", ordered)
    calls = 0
    for seed in seeds:
        trace: list[str] = []
        folder = tmp_path / str(seed)
        with told(seed, trace):
            plan = lived(seed, folder, trace).plan()
            log, every, some = EmbeddedLog(folder / "log", create=False), Records(), Records()
            try:
                replay(plan, log, ReplayOptions(observer=every, any_environment=True))
                found = sorted({one[0] for one in every.calls}, key=repr)
                keys = Random(seed).sample(found, len(found) // 2)
                replay(plan, log, ReplayOptions(observer=some, keys=keys, any_environment=True))
            except SnapshotMismatchError:
                continue  # it has never committed
            finally:
                log.close()
            assert some.calls == [one for one in every.calls if one[0] in keys]
            calls += len(some.calls)
        shutil.rmtree(folder)
    assert calls
