"""The timer queue: names what is due in order, whatever its memory holds and wherever commits fall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tailrace.core import rows
from tailrace.core.engine.timers import FOREVER, TimerQueue

ACTORS = ["a", "b"]
"""By number; each has a queue of its own."""


class Index:
    """A store that holds index rows only."""

    def __init__(self) -> None:
        self.rows: set[bytes] = set()

    def get(self, row: bytes) -> bytes | None:
        return b"" if row in self.rows else None

    def get_many(self, wanted: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(row) for row in wanted]

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return iter([(row, b"") for row in sorted(self.rows, reverse=reverse) if start <= row < stop])


def queue_over(index: Index, limit: int, *, stored: bool, actor: int = 0) -> TimerQueue:
    return TimerQueue(rows.EVENT_TIME, index, ACTORS[actor], actor, limit, stored=stored)


Timer = tuple[int, int, bytes, bytes]
timers = st.tuples(
    st.integers(0, 30),
    st.integers(0, 1),
    st.sampled_from([b"k", b"l", b"\x00"]),
    st.sampled_from([b"nx", b"ny"]),
)


def first_of(queue: TimerQueue) -> tuple[int, Timer | None]:
    """Orders queues by what comes next."""
    return (queue.due_ms, queue.first if queue.due_ms < FOREVER else None)


@given(
    st.lists(st.one_of(timers, st.just("commit"), st.just("restart"), st.integers(0, 30)), max_size=80),
    st.integers(2, 6),
)
def test_timers_come_out_in_order_whatever_is_kept_in_memory(operations: list[object], limit: int) -> None:
    """Against a sorted set: set timers, fire up to a time, commit, and come back from the index alone."""
    index = Index()
    queues = [queue_over(index, limit, stored=False, actor=actor) for actor in (0, 1)]
    pending: set[Timer] = set()
    committed: set[Timer] = set()
    for operation in operations:
        if operation == "commit" or operation == "restart":
            index.rows = {
                rows.index_row(rows.EVENT_TIME, t, ACTORS[a].encode(), k, n) for t, a, k, n in pending
            }
            committed = set(pending)
            if operation == "commit":
                for queue in queues:
                    queue.committed()
            else:
                queues = [queue_over(index, limit, stored=True, actor=actor) for actor in (0, 1)]
        elif isinstance(operation, int):
            fired: list[Timer] = []
            while (queue := min(queues, key=first_of)).due_ms <= operation:
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
            queues[actor].push(time_ms, key, name)
    assert committed >= set()
    assert {entry for queue in queues for entry in queue.entries()} >= pending


def test_memory_is_bounded_by_the_limit_once_committed() -> None:
    index = Index()
    queue = queue_over(index, 10, stored=False)
    for time_ms in range(1000):
        queue.push(time_ms, b"k", b"nx")
        index.rows.add(rows.index_row(rows.EVENT_TIME, time_ms, b"a", b"k", b"nx"))
    queue.committed()
    assert len(queue._heap) <= 10
    fired = []
    while queue.due_ms < FOREVER:
        fired.append(queue.pop()[0])
        assert len(queue._heap) <= 10
    assert fired == list(range(1000))


def test_timers_of_another_actor_are_not_looked_at() -> None:
    """Not even read: its queue may have millions of them, and this one none."""
    index = Index()
    index.rows = {rows.index_row(rows.EVENT_TIME, at, b"aa", b"k", b"nx") for at in range(100)}
    index.rows |= {rows.index_row(rows.PROCESSING_TIME, at, b"a", b"k", b"nx") for at in range(100)}
    before, read = set(index.rows), 0
    scan = index.scan

    def counted(start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        nonlocal read
        for one in scan(start, stop, reverse=reverse):
            read += 1
            yield one

    index.scan = counted  # type: ignore[method-assign]  # what is asked of it is counted
    assert queue_over(index, 10, stored=True).due_ms == FOREVER
    assert (index.rows, read) == (before, 0)


def test_a_pop_can_be_put_back() -> None:
    queue = queue_over(Index(), 10, stored=False)
    queue.push(7, b"k", b"nx")
    entry = queue.pop()
    assert queue.due_ms == FOREVER
    queue.put_back(entry)
    assert queue.due_ms == 7
    assert queue.pop() == entry
