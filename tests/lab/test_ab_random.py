"""``tailrace ab`` over random apps whose services have lived under faults: a version does not differ from itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import Output
from tailrace.history.rebuilding.request import Failures
from tests.cast.programs import lived as lived_program
from tests.history.rebuilding import any_app, lived
from tests.lab import yard
from tests.lab.in_process import comparison
from tests.lab.selling import version
from tests.proof.seeds import told


@pytest.mark.one_seed_in(200)  # one takes 3 s
def test_a_version_does_not_differ_from_itself(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their operators feed each other, so they have the tape alone."""
    failures = Failures(any_environment=True)
    outputs = keys = 0
    for seed in seeds:
        trace: list[str] = []
        folder = tmp_path / str(seed)
        with told(seed, trace):
            name = any_app.place(lived_program(seed, folder, trace))
            try:
                report, *tables = comparison(monkeypatch, folder, name, name, failures=failures)
            except SnapshotMismatchError:
                continue  # it has never committed, so there is no tape
            assert (report.noise, report.order, tables) == ([], "tape", [[], []])
            outputs += report.counts.outputs[0]
            keys += report.counts.keys
        shutil.rmtree(folder)
    assert outputs
    assert keys


def test_versions_differ_in_odd_values_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = yard.history(5)
    encoded = [msgspec.json.encode(one) for one in events]
    lived.append(
        tmp_path,
        [
            Output("moves", yard.slot_key(one), value, int(one.at.timestamp() * 1_000))
            for one, value in zip(events, encoded, strict=True)
        ],
        {"moves": 3, "moved": 3},
    )
    lived.live_on(tmp_path, "tests.lab.yard:app")
    finite = ("None if event.ratio is None", 'None if event.ratio in (None, "inf")')
    a, b = (
        version(tmp_path, name, *some, of=yard.__file__)
        for name, some in (("yard_a", ()), ("yard_b", (finite,)))
    )
    report, *tables = comparison(monkeypatch, tmp_path, a, a)
    assert (report.noise, report.order, tables) == ([], "stages", [[], []])
    _, keys, outputs = comparison(monkeypatch, tmp_path, a, b)
    assert {(one["key"], one["field"], one["a"], one["b"]) for one in keys} == {
        (str(key), "ratio", "inf", "None")
        for key, one in yard.expected(events).items()
        if one["ratio-of"] == "inf"
    }
    assert keys
    assert outputs == []
