"""Two versions of an app at one time: what the newer has taken over, the older never continues. Two services with one name are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.members import Members, await_tasks, runs, stopped
from tests.kafka.versioned_visits import FIRST, SECOND, UNRELATED, Visits


@pytest.fixture
def members(kafka_url: str, tmp_path: Path) -> Iterator[Members]:
    made = Members(kafka_url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def visits(kafka_url: str) -> Iterator[Visits]:
    made = Visits(kafka_url)
    yield made
    made.log.close()


def test_what_a_newer_version_has_taken_over_an_older_never_continues_until_it_is_told_to(
    visits: Visits, members: Members
) -> None:
    visits.feed(1_000)
    old = members.start(FIRST, "one")
    await_tasks(old, 4)
    new = members.start(SECOND, "two")
    await_tasks(new, 2)
    visits.feed(1_000)
    visits.await_all()
    stopped(new)  # its tasks go to the older version
    assert old.ended() != 0
    assert "has replaced version '1'" in old.text()
    assert "--downgrade" in old.text()
    visits.feed(1_000)
    new = members.start(SECOND, "two")
    await_tasks(new, 4)
    found = visits.await_all()
    for one in found:
        versions = [total.version for total in one]
        assert versions == sorted(versions)
    assert {total.version for one in found for total in one} == {1, 2}
    counts = {total.key: total.count for one in found for total in one}
    assert counts == {f"k{number}": 30 for number in range(100)}

    stopped(new)
    old = members.start(FIRST, "one")
    assert old.ended() != 0
    assert "has replaced version '1'" in old.text()
    old = members.start(FIRST, "one", "--downgrade")
    await_tasks(old, 4)
    visits.feed(1_000)
    found = visits.await_all()
    assert all(one[-1].version == 1 for one in found)
    stopped(old)
    new = members.start(SECOND, "two")
    assert new.ended() != 0
    assert "has replaced version '1'" in new.text()
    counts = {total.key: total.count for one in visits.totals() for total in one}
    assert counts == {f"k{number}": 40 for number in range(100)}


def test_a_second_service_with_the_same_name_is_refused_even_before_the_first_has_committed(
    visits: Visits, members: Members
) -> None:
    mine = members.start(FIRST, "mine")
    await_tasks(mine, 4)
    for _ in range(2):
        theirs = members.start(UNRELATED, "theirs")
        assert theirs.ended() != 0
        assert "'parcels'" in theirs.text()
        assert "'came'" in theirs.text()
        assert "another name" in theirs.text()
        assert not runs(theirs)
        visits.feed(500)
        visits.await_all()
    assert mine.code() is None
