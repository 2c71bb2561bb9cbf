"""Random apps on the real log, under faults: however their life is rebuilt, it comes to the bytes that they
have left.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tailrace as tr
from tailrace.core.errors import SnapshotMismatchError
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tests.history.rebuilding import any_app
from tests.history.rebuilding.lived import live, opened, rebuilt, request
from tests.proof.operations import Chance
from tests.proof.seeds import shuffled, told
from tests.soak.struck import Run


def lived(seed: int, folder: Path, trace: list[str]) -> tr.App:
    """A life under faults, in a log."""
    one = shuffled(seed, "rebuilt")
    run = Run(one.model.app.plan(), seed, one.inputs, folder, one.flaky)
    run.trace = trace
    run.run(steps=12)
    Chance.fires = staticmethod(lambda: False)
    return one.model.app


@pytest.mark.one_seed_in(100)  # one takes 1.2 s
def test_however_a_life_is_rebuilt_it_comes_to_what_it_has_left(seeds: range, tmp_path: Path) -> None:
    rebuilds = 0
    for seed in seeds:
        trace: list[str] = []
        folder = tmp_path / str(seed)
        with told(seed, trace):
            app = lived(seed, folder, trace)
            name, wanted = any_app.place(app), live(folder, app.plan())
            for split in (1, 3):
                asked = request(folder, name, split=split, order="tape", store="memory", any_environment=True)
                try:
                    report = rebuild(asked, LocalEngine(1))
                except SnapshotMismatchError:
                    assert not any(one.cut for one in wanted)
                    continue
                trace.append(f"split {split}: {report.notes}")
                assert rebuilt(opened(asked, report)) == wanted
                rebuilds += 1
        shutil.rmtree(folder)
    assert rebuilds
