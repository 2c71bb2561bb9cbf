"""The timer queue: names what is due in order, whatever its memory holds and wherever commits fall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tailrace.core import rows
from tailrace.core.engine.timers import FOREVER, TimerQueue

ACTORS = ["a", "b", "gone"]
"""By number; the last one is not declared any more."""


class Index:
    """A store that holds index rows only."""

    def __init__(self) -> None:
        self.rows: set[bytes] = set()

    def get(self, row: bytes) -> bytes | None:
        return b"" if row in self.rows else None

    def get_many(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(row) for row in wanted]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter([(row, b"") for row in sorted(self.rows) if start <= row < stop])


def queue_over(index: Index, limit: int, *, stored: bool) -> TimerQueue:
    numbers = {"a": 0, "b": 1}
    return TimerQueue(rows.EVENT_TIME, index, numbers.get, limit, stored=stored)


Timer = tuple[int, int, bytes, bytes]
timers = st.tuples(
    st.integers(0, 30),
    st.integers(0, 1),
    st.sampled_from([b"k", b"l", b"\x00"]),
    st.sampled_from([b"nx", b"ny"]),
)


@given(
    st.lists(st.one_of(timers, st.just("commit"), st.just("restart"), st.integers(0, 30)), max_size=80),
    st.integers(2, 6),
)
def test_timers_come_out_in_order_whatever_is_kept_in_memory(operations: list[object], limit: int) -> None:
    """Against a sorted set: set timers, fire up to a time, commit, and come back from the index alone."""
    index = Index()
    queue = queue_over(index, limit, stored=False)
    pending: set[Timer] = set()
    committed: set[Timer] = set()
    for operation in operations:
        if operation == "commit" or operation == "restart":
            index.rows = {
                rows.index_row(rows.EVENT_TIME, t, ACTORS[a].encode(), k, n) for t, a, k, n in pending
            }
            committed = set(pending)
            if operation == "commit":
                queue.committed()
            else:
                queue = queue_over(index, limit, stored=True)
        elif isinstance(operation, int):
            fired: list[Timer] = []
            while queue.due_ms <= operation:
                entry = queue.pop()
                if entry in pending:  # else it is stale or named twice, which is allowed
                    pending.remove(entry)
                    fired.append(entry)
            assert fired == sorted(fired)
            assert not any(entry[0] <= operation for entry in pending)
        else:
            assert isinstance(operation, tuple)
            time_ms, actor, key, name = operation
            pending.add((time_ms, actor, key, name))
            queue.push(time_ms, actor, key, name)
    assert committed >= set()
    assert set(queue.latest_first()) >= pending


def test_memory_is_bounded_by_the_limit_once_committed() -> None:
    index = Index()
    queue = queue_over(index, 10, stored=False)
    for time_ms in range(1000):
        queue.push(time_ms, 0, b"k", b"nx")
        index.rows.add(rows.index_row(rows.EVENT_TIME, time_ms, b"a", b"k", b"nx"))
    queue.committed()
    assert len(queue._heap) <= 10
    fired = []
    while queue.due_ms < FOREVER:
        fired.append(queue.pop()[0])
        assert len(queue._heap) <= 10
    assert fired == list(range(1000))


def test_timers_of_a_removed_actor_stay_where_they_are() -> None:
    index = Index()
    index.rows = {rows.index_row(rows.EVENT_TIME, 5, b"gone", b"k", b"nx")}
    queue = queue_over(index, 10, stored=True)
    assert queue.due_ms == FOREVER
    assert len(index.rows) == 1


def test_a_pop_can_be_put_back() -> None:
    queue = queue_over(Index(), 10, stored=False)
    queue.push(7, 0, b"k", b"nx")
    entry = queue.pop()
    assert queue.due_ms == FOREVER
    queue.put_back(entry)
    assert queue.due_ms == 7
    assert queue.pop() == entry
