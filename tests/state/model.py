"""The model of a store: a dict, its sorted items, and the cut of the last batch; and batches and looks to try."""

from __future__ import annotations

from hypothesis import strategies as st

from tailrace.core.storage import Store
from tailrace.state.memory import FIRST_ROW

# Few keys, close to one another and to the ends of the key space, so that batches and scans meet.
row_keys = st.binary(min_size=1, max_size=3).filter(lambda row: row >= FIRST_ROW) | st.sampled_from(
    [b"\1", b"\1\0", b"\xff", b"\xff\xff", b"a", b"a\0"]
)
batches = st.dictionaries(row_keys, st.none() | st.binary(max_size=4), max_size=20)
bounds = st.tuples(st.binary(max_size=3), st.binary(max_size=3))
everything = (b"", b"\xff\xff\xff\xff")


class Model:
    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.cut: bytes | None = None

    def write(self, batch, cut: bytes) -> None:
        for row, value in batch.items():
            if value is None:
                self.rows.pop(row, None)
            else:
                self.rows[row] = value
        self.cut = cut

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False):
        return [
            (row, value) for row, value in sorted(self.rows.items(), reverse=reverse) if start <= row < stop
        ]


def assert_same(model: Model, store: Store, scans, asked) -> None:
    assert store.cut == model.cut
    for start, stop in scans:
        assert list(store.scan(start, stop)) == model.scan(start, stop)
        assert list(store.scan(start, stop, reverse=True)) == model.scan(start, stop, reverse=True)
    assert store.get_many(asked) == [model.rows.get(row) for row in asked]
    for row in asked:
        assert store.get(row) == model.rows.get(row)


looks = st.tuples(st.lists(bounds, max_size=3), st.lists(row_keys, max_size=5))
