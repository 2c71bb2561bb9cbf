"""The memory that is allowed for the state of a process is shared out, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.states import DEFAULT_MIB, LEAST_MIB, States, shares_of
from tailrace.state import OverlayStore

OPTIONS = ServiceOptions("tests.runtime:app", Path(), Path())


@pytest.mark.parametrize("mib", [LEAST_MIB, 100, DEFAULT_MIB, 10_000])
def test_the_shares_are_what_is_given(mib: int) -> None:
    assert mib * (1 << 20) - 9 <= sum(shares_of(mib)) <= mib * (1 << 20)


@pytest.mark.parametrize("tasks", [1, 3, 24])
def test_the_tasks_of_a_process_share_what_it_has(tmp_path: Path, tasks: int) -> None:
    options = replace(OPTIONS, memory_mib=90)
    states = States(tmp_path, "app", 5, tasks, options.memory_mib)
    stores = [states.take(number) for number in range(tasks)]
    assert all(isinstance(one, OverlayStore) for one in stores)
    waiting = sum(one._most_bytes for one in stores if isinstance(one, OverlayStore))
    live = tasks * options.worker_settings(tasks).partition.task.cache_bytes
    folders = states._memory.budget_bytes  # of all of them together
    for one in stores:
        one.close()
    assert [round(share / (1 << 20)) for share in (live, folders, waiting)] == [40, 40, 10]
