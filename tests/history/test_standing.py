"""A state is exchanged only for one of the same moment: no bill twice and none lost, by whatever kind of timer it is made.

The oracle is arithmetic: a customer is billed once for each day that has passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import SnapshotMismatchError
from tailrace.history.comparing.cut_differences import cut_changes, in_one_line
from tailrace.history.reading.commit_identity import standing, tape_record
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.state.snapshots import Manifest
from tests.history.rebuilding.lived import request
from tests.runtime import state_world
from tests.runtime.billing import APPS, DAY, PARTITIONS, START, Billing, by_clock, by_event


@pytest.fixture(params=[by_event, by_clock], ids=lambda app: app.name)
def billing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Billing]:
    made = Billing(tmp_path, request.param)
    made.join()
    yield made
    made.log.close()


def edited(billing: Billing) -> Manifest:
    """A snapshot of now that says that it is not a part of the history, as one that was edited."""
    take_snapshot(billing.plan, billing.log, billing.snapshots())
    return state_world.edited(billing.snapshots(), lambda _, value: value)


def canonical(billing: Billing) -> str:
    asked = request(billing.folder, APPS[billing.app.name], order="canonical")
    return rebuild(asked, LocalEngine(1)).snapshot


def refused(billing: Billing, which: str, *said: str) -> None:
    """The snapshot is not taken up, and nothing has changed."""
    before = billing.log.ends(billing.log.topics()).offsets
    with pytest.raises(SnapshotMismatchError) as caught:
        billing.run(billing.start(which))
    for one in said:
        assert one in str(caught.value)
    assert billing.log.ends(billing.log.topics()).offsets == before


def test_a_state_whose_timers_have_fired_since_is_not_replaced(billing: Billing) -> None:
    made = edited(billing)
    positions = [billing.cut(number).positions for number in range(PARTITIONS)]
    billing.passes(3)
    assert [billing.cut(number).positions for number in range(PARTITIONS)] == positions
    assert billing.billed() == billing.owed()
    refused(billing, made.id, "does not stand where the app", "timers fired: 0 and ")
    billing.passes(2)
    assert billing.billed() == billing.owed()


def test_a_state_of_the_same_moment_is_replaced_and_each_bill_comes_once(billing: Billing) -> None:
    made = edited(billing)
    billing.run(billing.start(made.id))
    assert billing.cut(0).base == made.id
    billing.passes(3)
    again = edited(billing)
    billing.run(billing.start(again.id))
    assert billing.cut(0).base == again.id
    billing.passes(2)
    assert billing.billed() == billing.owed()


def test_what_was_replaced_is_not_replaced_by_what_stood_there_before_it_went_on(billing: Billing) -> None:
    """Two tapes: the commits of one say nothing of the other."""
    first, second = edited(billing), edited(billing)
    billing.run(billing.start(first.id))
    billing.passes(3)
    refused(billing, second.id, "timers fired: 0 and ")
    assert billing.billed() == billing.owed()


def test_a_commit_alone_is_told_too(billing: Billing) -> None:
    cut = billing.cut(0)
    found = cut_changes(cut, msgspec.structs.replace(cut, tape=cut.tape + 2))
    assert in_one_line(found) == f"commits: {cut.tape:,} and {cut.tape + 2:,}"
    assert cut_changes(cut, msgspec.structs.replace(cut, lineage=b"another")) != []
    assert cut_changes(cut, None) != []
    assert cut_changes(None, None) == cut_changes(cut, cut) == []


def test_canonical_order_replaces_a_state_only_where_no_timer_would_fire_twice(billing: Billing) -> None:
    """It has its own clock: the time that has passed since the last record, no record tells."""
    billing.passes(3)
    assert billing.billed() == billing.owed()
    made = canonical(billing)
    refused(billing, made, "would fire a second time", "Subscriber 'who-", "timer 'day' at ")
    billing.passes(1)
    assert billing.billed() == billing.owed()


def test_canonical_order_replaces_a_state_that_it_agrees_with(billing: Billing) -> None:
    made = canonical(billing)
    billing.run(billing.start(made))
    assert billing.cut(0).base == made
    billing.passes(3)
    assert billing.billed() == billing.owed()


def test_canonical_order_does_not_take_a_timer_away_that_the_app_has_still_to_fire(tmp_path: Path) -> None:
    """The records are stamped later than the app's clock: what it has not billed yet is fired in the rebuild."""
    billing = Billing(tmp_path, by_clock)
    billing.join()
    ahead = billing.clock_ms
    billing.clock_ms = START + 2 * DAY + 1
    billing.say("beats", START + 101 * DAY)
    billing.clock_ms = ahead
    billing.run()
    made = canonical(billing)
    refused(billing, made, "would never fire", "Subscriber 'who-", "timer 'day' at ")
    billing.passes(4)
    assert billing.billed() == billing.owed()
    billing.log.close()


def test_a_record_of_the_tape_is_found_by_its_number(billing: Billing) -> None:
    billing.passes(3)
    for number in range(PARTITIONS):
        cut = billing.cut(number)
        found = [tape_record(billing.plan, billing.log, number, at) for at in range(cut.tape)]
        assert [one.number if one else None for one in found] == [*range(cut.tape)]
        assert tape_record(billing.plan, billing.log, number, cut.tape) is None
        assert standing(billing.plan, billing.log, number, cut).in_log
        later = msgspec.structs.replace(cut, tape=cut.tape + 1)
        assert standing(billing.plan, billing.log, number, later).in_log is False
        billing.log.delete_before(f"{billing.app.name}.tape", number, 1)
        first = msgspec.structs.replace(cut, tape=1)
        assert (
            standing(billing.plan, billing.log, number, first).in_log is False
        )  # commit 1 does not follow it
        billing.log.delete_before(f"{billing.app.name}.tape", number, 2)
        assert standing(billing.plan, billing.log, number, first).in_log is None
