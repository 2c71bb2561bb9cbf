"""The README's example reports every silence of an hour, like a loop over the sorted reports."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from tailrace.testing import Harness
from tests.docs.page import ROOT

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
Told = tuple[str, int, int]
"""A ship, the time of its last report before a silence, and the number of its reports up to then."""


@pytest.fixture(scope="module")
def ships(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The code of the README."""
    found = re.search(r"```python\n(# ships\.py\n.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    file: Path = tmp_path_factory.mktemp("readme") / "readme_ships.py"
    file.write_text(found[1], "utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(reports: Iterable[tuple[str, int]]) -> list[Told]:
    """The silences of an hour, as a loop over the sorted reports finds them."""
    ordered = sorted(reports)
    told: list[Told] = []
    for ship in sorted({ship for ship, _ in ordered}):
        times = [at_ms for one, at_ms in ordered if one == ship]
        told += [
            (ship, at_ms, count)
            for count, at_ms in enumerate(times, 1)
            if count == len(times) or times[count] - at_ms >= HOUR_MS
        ]
    return told


def told(ships: ModuleType, reports: Iterable[tuple[str, int]]) -> list[Told]:
    """The silences that the README's service reports, with one partition."""
    with Harness(ships.app, partitions=1) as h:
        h.send(ships.reports, *(ships.Report(ship, at_ms) for ship, at_ms in reports))
        h.end_of_input()
        assert h.late == 0
        h.replay()
        return sorted((one.ship, one.since_ms, one.reports) for one in h.emitted(ships.missing))


@pytest.mark.parametrize("others", [[], [("Grace", 3 * HOUR_MS - 1)]], ids=["alone", "with another"])
def test_a_silence_that_the_ship_itself_ends_is_reported(
    ships: ModuleType, others: list[tuple[str, int]]
) -> None:
    reports = [("Ada", 0), *others, ("Ada", 3 * HOUR_MS)]
    assert ("Ada", 0, 1) in told(ships, reports)
    assert told(ships, reports) == expected(reports)


def test_a_report_that_was_overtaken_ends_a_silence(ships: ModuleType) -> None:
    reports = [("Ada", 0), ("Ada", 65 * MINUTE_MS), ("Ada", 56 * MINUTE_MS)]
    assert told(ships, reports) == expected(reports) == [("Ada", 65 * MINUTE_MS, 3)]


@pytest.mark.parametrize("fleet", [["Ada"], ["Ada", "Grace", "Edsger"]], ids=["one ship", "three ships"])
@pytest.mark.parametrize("seed", range(5))
def test_the_silences_are_those_of_a_loop_over_sorted_reports(
    ships: ModuleType, fleet: list[str], seed: int
) -> None:
    random = Random(seed)
    made: list[tuple[str, int]] = []
    now = HOUR_MS
    for _ in range(150):
        now += random.choice([0, 1, 5, 20, 50, 60, 61, 65, 180]) * MINUTE_MS
        made.append((random.choice(fleet), now - random.randrange(10) * MINUTE_MS))
    assert told(ships, made) == expected(made)
