"""Laws on commits that wait in memory: reads see them, a crash loses whole commits from the end, and never more than the limit."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.errors import StateUnavailableError
from tailrace.state import MemoryStore, OverlayStore
from tests.state.model import Model, assert_same, batches, everything, looks

steps = st.lists(st.tuples(batches, st.sampled_from(["", "crash", "close"]), st.none() | looks), max_size=12)
LARGE = 1 << 30


@given(steps, st.integers(1, 4), st.sampled_from([0, 1_500, LARGE]))
def test_reads_see_each_commit_and_a_crash_loses_less_than_the_limit(steps, commits, most_bytes) -> None:
    below = MemoryStore()
    store = OverlayStore(below, commits, most_bytes)
    model, history = Model(), [Model()]
    for number, (batch, end, look) in enumerate(steps):
        cut = b"%d" % number
        model.write(batch, cut)
        store.write(batch, cut)
        history.append(deepcopy(model))
        left = history[written(history, below)]
        assert_same(left, below, [everything], list(left.rows))
        lost = len(history) - 1 - written(history, below)
        assert lost < commits
        if most_bytes == 0:  # what waits has taken no bytes: commits without a row
            assert left.rows == model.rows
        if look:
            scans, asked = look
            assert_same(model, store, [*scans, everything], [*asked, *batch])
        if end == "close":
            store.close()
            assert below.cut == cut
        if end:  # a crash: what waits is gone
            store = OverlayStore(below, commits, most_bytes)
            del history[written(history, below) + 1 :]
            model = deepcopy(history[-1])
            assert_same(model, store, [everything], list(batch))


def written(history: list[Model], below: MemoryStore) -> int:
    """The commit that the store below stands at."""
    return max(at for at, one in enumerate(history) if one.cut == below.cut)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_shows_the_rows_as_of_its_start_also_after_a_commit_and_a_flush(reverse: bool) -> None:
    store = OverlayStore(MemoryStore(), 3, LARGE)
    store.write({b"a": b"1", b"c": b"1"}, b"1")
    store.flush()
    store.write({b"b": b"2", b"c": b"2", b"d": b"2"}, b"2")
    rows = store.scan(b"a", b"z", reverse=reverse)
    before = [(b"a", b"1"), (b"b", b"2"), (b"c", b"2"), (b"d", b"2")][:: -1 if reverse else 1]
    assert next(rows) == before[0]
    store.write({b"a": None, b"b": b"3", b"c": None, b"e": b"3"}, b"3")
    store.flush()
    assert list(rows) == before[1:]


def test_rows_that_change_in_every_commit_are_written_once() -> None:
    below = Counting()
    store = OverlayStore(below, 5, LARGE)
    for number in range(10):
        store.write({b"%d" % row: b"%d" % number for row in range(100)}, b"%d" % number)
    assert below.written == 200
    assert below.cut == b"9"


def test_what_waits_is_bounded_by_bytes() -> None:
    below = Counting()
    store = OverlayStore(below, 1_000, 100_000)
    for number in range(20):
        store.write({b"%d" % number: bytes(30_000)}, b"%d" % number)
    assert int(below.cut or b"") >= 15


def test_a_failed_write_is_raised_by_each_later_write_and_not_tried_again_at_the_end() -> None:
    below = Counting()
    store = OverlayStore(below, 2, LARGE)
    below.fails = True
    store.write({b"a": b"1"}, b"1")
    for cut in (b"2", b"3"):
        with pytest.raises(StateUnavailableError):
            store.write({b"a": cut}, cut)
    store.close()
    assert below.is_closed
    assert below.cut is None


class Counting(MemoryStore):
    """Counts the rows that are written, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.fails = self.is_closed = False

    def write(self, rows, cut, /) -> None:
        if self.fails:
            raise StateUnavailableError("the disk is full", path="somewhere")
        self.written += len(rows)
        super().write(rows, cut)

    def close(self) -> None:
        self.is_closed = True
