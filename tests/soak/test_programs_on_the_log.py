"""The property test of the core through the real worker, the embedded log and RocksDB."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.core.errors import TailraceError
from tailrace.core.records import Output
from tests.proof.seeds import shuffled, told
from tests.soak import struck as driver
from tests.soak.struck import Run


def struck(seed: int, folder: Path, trace: list[str]) -> int:
    """A run of a seed, checked; how many faults there were."""
    one = shuffled(seed)
    run = Run(one.model.app.plan(), seed, one.inputs, folder, one.flaky)
    run.trace = trace
    report = run.run(steps=12)
    assert report.commits
    return run.faults


@pytest.mark.one_seed_in(20)  # files take their time: one takes 0.15 s
def test_whatever_strikes_a_worker_on_the_real_log_its_replay_equals_it(seeds: range, tmp_path: Path) -> None:
    faults = 0
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            faults += struck(seed, tmp_path / str(seed), trace)
        shutil.rmtree(tmp_path / str(seed))
    assert faults > len(seeds)


def test_what_is_written_outside_of_the_commit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = driver.StruckWriter.append

    def append_at_once(
        self: driver.StruckWriter, outputs: list[Output], partition: int | None = None
    ) -> None:
        append(self, outputs, partition)
        if partition is None:  # no changelog, no tape
            self.inner.commit()

    monkeypatch.setattr(driver.StruckWriter, "append", append_at_once)
    with pytest.raises((AssertionError, TailraceError)):
        for seed in range(20):
            struck(seed, tmp_path / str(seed), [])
