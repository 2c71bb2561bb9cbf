"""Whatever strikes, and whenever: what is in the end is what one run without any of it gives, and what replay gives."""

from __future__ import annotations

import pytest

from tests.runtime.chaos import Chaos
from tests.runtime.world import APPS, World, replayed, run_dry


@pytest.mark.one_seed_in(5)  # one takes 35 ms
@pytest.mark.parametrize("app", APPS)
def test_no_schedule_of_faults_changes_what_comes_out(app, seeds) -> None:
    struck = 0
    for seed in seeds:
        chaos = Chaos(seed, app)
        world = chaos.run()
        struck += chaos.struck
        assert replayed(world) == (world.outputs(), world.rows()), seed
        if app == "one input":
            clean = World(APPS[app]())
            for one in world.log.read("sales"):
                clean.log.append("sales", *one[2:4], one.timestamp_ms)
            partition = clean.running()
            run_dry(partition)
            partition.revoke()
            assert clean.outputs() == world.outputs(), seed
            assert clean.rows() == world.rows(), seed
    assert struck > len(seeds)
