"""The world strikes with everything it has, and notices what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.runtime.slices import Slices
from tailrace.testing.memory_log import MemoryWriter
from tests.cast.world import World
from tests.proof.seeds import shuffled


def lived(seed: int) -> World:
    """A whole life in memory."""
    one = shuffled(seed)
    world = World(one.model.app.plan(), seed, one.inputs, None, one.flaky, duplicates=True)
    world.run(40)
    return world


def test_it_strikes_with_everything_it_has_and_a_sound_service_stands_it() -> None:
    faults = Counter[str]()
    for seed in range(20):
        faults += lived(seed).faults
    assert set(faults) == {
        "kill", "unknown", "log away", "disk full", "zombie", "rebalance", "lost store", "duplicate",
        "compaction", "expired transaction", "log restart",
    }  # fmt: skip


def untransactional(patch: pytest.MonkeyPatch) -> None:
    def send(self: Slices) -> None:
        writer = self.writer
        assert isinstance(writer, MemoryWriter)
        writer._log.append_all(self.task.take_outputs())

    patch.setattr(Slices, "_send", send)


def forgetful(patch: pytest.MonkeyPatch) -> None:
    stage = Slices.stage

    def without_rows(self: Slices) -> Any:
        batch = stage(self)
        batch.rows.clear()
        return batch

    patch.setattr(Slices, "stage", without_rows)


@pytest.mark.parametrize("wrong", [untransactional, forgetful])
def test_it_notices_a_service_that_is_not_sound(
    wrong: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch)
    with pytest.raises(Exception) as caught:  # in which way it shows depends on the seed
        for seed in range(30):
            lived(seed)
    assert not isinstance(caught.value, AttributeError | NameError)
