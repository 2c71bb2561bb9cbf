"""Stores live within the memory they are given, together."""

import contextlib
from pathlib import Path

import pytest

from tailrace.state import RocksStore, StateIdentity, StateMemory

MIB = 1 << 20


def test_stores_share_a_budget_that_their_rows_exceed(tmp_path: Path) -> None:
    memory = StateMemory(8 * MIB)
    used_bytes = vars(memory)["_cache"].get_usage
    most = 0
    with contextlib.ExitStack() as closing:
        stores = [RocksStore(tmp_path / f"{n}", StateIdentity("flights", n), memory) for n in range(3)]
        for store in stores:
            closing.callback(store.close)
        for number in range(30):
            for store in stores:
                rows = {b"%030d" % row: b"%01000d" % row for row in range(number * 400, number * 400 + 400)}
                store.write(rows, b"%d" % number)
                store.get_many([b"%030d" % row for row in range(0, number * 400, 50)])
                most = max(most, used_bytes())
        for store in stores:
            assert sum(1 for _ in store.rows()) == 12000
            most = max(most, used_bytes())
    # Rows that wait to be flushed may exceed it for a while: three buffers of 1 MiB in each store at most.
    assert memory.budget_bytes // 4 < most < memory.budget_bytes + 9 * MIB


def test_a_budget_too_small_for_any_store_is_refused() -> None:
    with pytest.raises(ValueError, match="1 MiB or more"):
        StateMemory(1000)
