"""Number and digest of the rows of a state: kept commit by commit they are those of the rows themselves."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.state import MemoryStore
from tailrace.state.contents import Contents, StoreContents


def of(store: MemoryStore) -> Contents:
    return Contents().applied(dict(store.rows()))


def random_changes(random: Random, most: int) -> dict[bytes, bytes | None]:
    return {
        b"s%d" % random.randrange(60): None if random.random() < 0.3 else b"%d" % random.randrange(5)
        for _ in range(random.randrange(most))
    }


@pytest.mark.parametrize("recent", [0, 20, 1_000])
def test_they_are_those_of_the_rows_after_each_commit(recent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.state.contents._RECENT", recent)
    for seed in range(20):
        random, store = Random(seed), MemoryStore()
        kept, folded = StoreContents(store, Contents()), Contents()
        for number in range(40):
            changed = random_changes(random, 30)
            folded = folded.applied(changed, store.get_many(list(changed)))
            assert kept.changed(changed) == folded
            if number % 5 == 4:  # a commit that is made again
                changed = random_changes(random, 30)
                folded = of(store).applied(changed, store.get_many(list(changed)))
                kept.changed(changed)
            store.write(changed, b"")
            kept.committed()
            assert kept.now == folded == of(store)


def test_a_row_that_is_lost_or_older_is_noticed() -> None:
    rows: dict[bytes, bytes | None] = {b"s%d" % number: b"%d" % (number % 7) for number in range(1_000)}
    whole = Contents().applied(rows)
    assert whole.rows == 1_000
    for row in list(rows)[::50]:
        assert Contents().applied(rows | {row: b"older"}) != whole
        assert Contents().applied({name: one for name, one in rows.items() if name != row}) != whole
    assert Contents().applied({row: rows[row] for row in reversed(rows)}) == whole
    assert whole.applied(dict.fromkeys(rows), list(rows.values())) == Contents()
