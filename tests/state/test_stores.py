"""What every store promises: the model is a dict, its sorted items, and the cut of the last batch."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.storage import Store
from tailrace.state import MemoryStore, OverlayStore, RocksStore, StateIdentity, StateMemory, open_store
from tailrace.state.memory import FIRST_ROW
from tests.state.model import Model, assert_same, batches, everything, looks

OURS = StateIdentity("flights", 0)


@pytest.fixture(params=["memory", "rocks", "overlay"])
def store(request, tmp_path: Path) -> Iterator[Store]:
    store = open_store(None if request.param == "memory" else tmp_path / "state", OURS)
    with contextlib.closing(
        OverlayStore(store, 3, 1 << 20) if request.param == "overlay" else store
    ) as store:
        yield store


# A batch and its cut; then, perhaps, a reopening; then, perhaps, a look. What a store puts off must not show.
steps = st.lists(st.tuples(batches, st.binary(max_size=5), st.booleans(), st.none() | looks), max_size=8)


@given(steps)
def test_both_stores_equal_a_dict_under_any_batches_scans_and_reopenings(steps) -> None:
    model, memory = Model(), MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        rocks = RocksStore(Path(folder), OURS, StateMemory(4 << 20))
        try:
            for batch, cut, reopens, look in steps:
                for each in (model, memory, rocks):
                    each.write(batch, cut)
                if reopens:
                    rocks.close()
                    rocks = RocksStore(Path(folder), OURS, StateMemory(4 << 20))
                if look:
                    scans, asked = look
                    for each in (memory, rocks):
                        assert_same(model, each, [*scans, everything], [*asked, *batch])
            assert list(memory.rows()) == list(rocks.rows()) == sorted(model.rows.items())
            assert len(memory) == len(model.rows)
        finally:
            rocks.close()


def test_what_a_store_writes_for_itself_is_never_seen_as_a_row(store: Store) -> None:
    for _ in range(40):  # every slot of the numbers of batches
        store.write({FIRST_ROW: b"least"}, b"cut")
    own = [b"", b"\0", *(b"\0" + bytes((slot,)) for slot in range(256))]
    assert [store.get(row) for row in own] == [None] * len(own)
    assert store.get_many([*own, FIRST_ROW]) == [*[None] * len(own), b"least"]
    assert list(store.scan(b"", b"\xff")) == [(FIRST_ROW, b"least")]


@pytest.mark.parametrize("row", [b"", b"\0", b"\0\1", b"\0\xff"])
def test_a_row_with_a_key_of_the_store_is_refused_and_nothing_of_its_batch_remains(
    store: Store, row: bytes
) -> None:
    with pytest.raises(ValueError, match="must not be empty or begin with a zero byte"):
        store.write({b"a": b"1", row: b"2"}, b"1")
    assert store.get(b"a") is None
    assert store.cut is None


def test_a_scan_shows_the_rows_as_they_were_when_it_was_asked_for(store: Store) -> None:
    before = {b"%05d" % n: b"old" for n in range(5000)}
    store.write(before, b"1")
    unread, begun = store.scan(b"", b"\xff"), store.scan(b"", b"\xff")
    first = next(begun)
    store.write({row: (None if n % 2 else b"new") for n, row in enumerate(before)} | {b"zz": b"new"}, b"2")
    assert [first, *begun] == list(unread) == sorted(before.items())


def test_a_scan_keeps_its_bound_alive(store: Store) -> None:
    store.write({b"%05d" % n: b"" for n in range(3000)}, b"1")
    for stop in range(2000, 2100):
        scan = store.scan(b"", b"%05d" % stop)
        next(scan)
        garbage = [b"%05d" % (9000 + n) for n in range(50)]  # takes the place of a bound that was let go
        assert len(garbage) + sum(1 for _ in scan) == 50 + stop - 1


def test_a_store_may_be_closed_twice(store: Store) -> None:
    store.close()
    store.close()
