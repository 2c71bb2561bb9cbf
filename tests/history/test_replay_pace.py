"""What makes a replay fast changes no result: commits that are put off, inputs that are read in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from tailrace.core import rows
from tailrace.core.records import InputRecord
from tailrace.history.reading import driving
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.state import MemoryStore
from tailrace.testing import Harness
from tests.history.sales import lived, random_service, shops


class Counted(MemoryStore):
    """Counts its commits."""

    writes = 0

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        self.writes += 1
        super().write(rows, cut)


@pytest.mark.one_seed_in(10)  # one takes 60 ms
def test_where_the_commits_of_a_replay_fall_changes_nothing(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds:
        with random_service(seed) as h:
            one, few = stores_of(h)
            with monkeypatch.context() as patched:
                patched.setattr(driving, "ENTRIES_AT_ONCE", 0)
                each, many = stores_of(h)
        assert one == each, seed
        assert few < many, seed


def stores_of(h: Harness) -> tuple[list[Any], int]:
    stores: dict[int, Counted] = {}

    def open_store(number: int) -> Counted:
        return stores.setdefault(number, Counted())

    replay(h.plan, h.log, open_store=open_store)
    # The index may be too early: when a timer that was moved is renewed there depends on where commits fall.
    kept = [([row for row in s.rows() if row[0][:1] != rows.INDEX], s.cut) for s in stores.values()]
    return kept, sum(s.writes for s in stores.values())


def test_inputs_are_read_the_same_in_runs_of_any_length(seeds: range) -> None:
    h = lived(shops())
    assert all(list(scan(h.log, "sales", number)) for number in range(h.plan.partitions))
    for number in range(h.plan.partitions):
        expected = list(scan(h.log, "sales", number))
        for seed in seeds:
            draw, read, at = Random(seed), AppHistory(h.plan, h.log).source(number), 0
            found: list[InputRecord] = []
            while at < len(expected):
                stop = min(at + draw.randrange(5), len(expected))
                found += read("sales", at, stop)
                at = stop
            assert found == expected
            back = draw.randrange(len(expected))
            assert read("sales", back, len(expected)) == expected[back:]
