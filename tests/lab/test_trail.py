"""The pipe between both sides of a search for first events: neither waits for one that has ended, and both stop early."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from tailrace.core.values.partitioner import partition_of
from tailrace.lab.trail import AllParted, Cause, Item, Step, compared_in, firsts, open_pipe, sent_to

KEYS = [b"a", b"b", b"c", b"d"]
ITEMS = [Item("state", "Shop", key) for key in KEYS]


def step(at: int, state: int = 0) -> Step:
    """What a key was after the event at this offset."""
    return Step(Cause("sales", 0, at, None, 10 * at), state, b"", (at + 1, 0))


def test_a_side_that_writes_ends_at_once_if_the_other_has_ended(tmp_path: Path) -> None:
    reading, writing = open_pipe(tmp_path)
    os.close(reading)
    with sent_to(tmp_path) as sent:
        assert sent.is_over
    os.close(writing)


def test_a_side_that_compares_parts_where_the_other_has_ended(tmp_path: Path) -> None:
    reading, writing = open_pipe(tmp_path)
    with sent_to(tmp_path) as sent:
        sent.add(ITEMS[0], step(1), 0)
    os.close(writing)
    with compared_in(tmp_path, ITEMS[:1], 1) as compared:
        assert not compared.add(ITEMS[0], step(1), None)
        with pytest.raises(AllParted):
            compared.add(ITEMS[0], step(2), None)
        assert firsts(ITEMS, compared.parted) == [(ITEMS[0], step(2).cause)]
    os.close(reading)


@pytest.mark.parametrize("as_one", [False, True])
def test_both_runs_stop_soon_after_all_keys_have_parted(as_one: bool, tmp_path: Path) -> None:
    """At event 100 of a million, in each of two partitions; ``as_one``: the side that writes runs them together."""
    reading, writing = open_pipe(tmp_path)
    written = dict[int, int]()

    def write() -> None:
        with sent_to(tmp_path) as sent:
            for number in (0,) if as_one else (0, 1):
                try:
                    for at in range(1_000_000):
                        for item in ITEMS:
                            if as_one or partition_of(item.key, 2) == number:
                                written[number] = at
                                sent.add(item, step(at), None if as_one else number)
                except AllParted:
                    pass

    writer = Thread(target=write)
    writer.start()
    with compared_in(tmp_path, ITEMS, 2) as compared:
        for number in (0, 1):
            with pytest.raises(AllParted):
                for at in range(1_000_000):
                    for item in ITEMS:
                        if partition_of(item.key, 2) == number:
                            compared.add(item, step(at, int(at == 100)), number)
    os.close(reading)
    os.close(writing)
    writer.join()
    assert {item: one.cause.offset for item, one in compared.parted.items()} == dict.fromkeys(ITEMS, 100)
    assert max(written.values()) < 20_000
