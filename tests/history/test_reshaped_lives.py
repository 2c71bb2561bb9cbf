"""Random apps that have lived under faults are reshaped to another number of partitions and back: no row is lost, and they live on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

from tailrace.history.moving.reshaping import reshape
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tests.history.rebuilding.test_random_lives import lived
from tests.history.test_reshaping import Life
from tests.proof.seeds import told


@pytest.mark.one_seed_in(60)  # one takes 2 s
def test_random_lives_keep_every_row_there_and_back_and_are_replayed(seeds: range, tmp_path: Path) -> None:
    kept = 0
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            plan = lived(seed, tmp_path / str(seed), trace).plan()
            life = Life.__new__(Life)
            life.folder, life.plan, life.stores, life.logs = tmp_path / str(seed), plan, {}, 0
            life.log = EmbeddedLog(life.folder / "log")
            before = life.rows()
            if not any(AppHistory(plan, life.log).committed(number).cut for number in range(plan.partitions)):
                continue
            partitions = Random(seed).choice([one for one in range(1, 6) if one != plan.partitions])
            new = EmbeddedLog(life.folder / "new")
            reshape(plan, life.log, new, str(life.folder / "snapshots"), partitions)
            life.log.close()
            life.log, life.plan = new, replace(plan, partitions=partitions)
            assert life.rows() == before
            kept += len(before)
            life.run()
            replay(life.plan, new, ReplayOptions(any_environment=True))
            before, back = life.rows(), EmbeddedLog(life.folder / "back")
            reshape(life.plan, new, back, str(life.folder / "others"), plan.partitions)
            new.close()
            life.log, life.plan, life.stores = back, plan, {}
            assert life.rows() == before
            life.run(to_the_end=True)
            replay(plan, back, ReplayOptions(any_environment=True))
            back.close()
        rmtree(life.folder)
    assert kept
