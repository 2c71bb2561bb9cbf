"""Random programs, which no oracle knows, that have lived on a log under faults."""

from __future__ import annotations

from pathlib import Path

import tailrace as tr
from tests.cast.world import World
from tests.proof.seeds import shuffled


def lived(seed: int, folder: Path, trace: list[str]) -> tr.App:
    """A life under faults, in the log of a folder."""
    one = shuffled(seed, "rebuilt")
    world = World(one.model.app.plan(), seed, one.inputs, folder, one.flaky)
    world.trace = trace
    world.run(steps=12)
    one.flaky(False)
    return one.model.app
