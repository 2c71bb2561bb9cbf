"""``tailrace ab`` over random apps whose services have lived under faults: a version does not differ from itself, in either order."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tailrace.core.errors import SnapshotMismatchError
from tailrace.history.rebuilding.request import Failures, Order
from tests.cast.programs import lived
from tests.history.rebuilding import any_app
from tests.lab.in_process import comparison
from tests.proof.seeds import told


@pytest.mark.one_seed_in(200)  # one takes 3 s
def test_a_version_does_not_differ_from_itself_in_either_order(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = Failures(any_environment=True)
    orders: dict[Order, str] = {"auto": "tape", "canonical": "canonical"}
    outputs, keys = Counter[str](), Counter[str]()
    for seed in seeds:
        trace: list[str] = []
        folder = tmp_path / str(seed)
        with told(seed, trace):
            name = any_app.place(lived(seed, folder, trace))
            for order, said in orders.items():
                try:
                    report, *tables = comparison(
                        monkeypatch, folder, name, name, failures=failures, order=order
                    )
                except SnapshotMismatchError:
                    assert order == "auto", "it has never committed, so there is no tape"
                    continue
                assert (report.noise, report.order, tables) == ([], said, [[], []])
                outputs[said] += report.counts.outputs[0]
                keys[said] += report.counts.keys
        shutil.rmtree(folder)
    for said in orders.values():
        assert outputs[said]
        assert keys[said]
