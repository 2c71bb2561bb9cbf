"""``tailrace ab`` over random apps whose services have lived under faults: a version does not differ from itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.core.errors import SnapshotMismatchError
from tailrace.history.rebuilding.request import Failures
from tests.history.rebuilding import any_app
from tests.history.rebuilding.test_random_lives import lived
from tests.lab.in_process import comparison
from tests.proof.seeds import told


@pytest.mark.one_seed_in(200)  # one takes 2 s
def test_a_version_does_not_differ_from_itself(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = Failures(any_environment=True)
    outputs = keys = 0
    for seed in seeds:
        trace: list[str] = []
        folder = tmp_path / str(seed)
        with told(seed, trace):
            name = any_app.place(lived(seed, folder, trace))
            try:
                report, *tables = comparison(monkeypatch, folder, name, name, failures=failures)
            except SnapshotMismatchError:
                continue  # it has never committed
            assert (report.noise, report.order, tables) == ([], "tape", [[], []])
            outputs += report.counts.outputs[0]
            keys += report.counts.keys
        shutil.rmtree(folder)
    assert outputs
    assert keys
