"""The life of a partition goes as its table says, and in no other way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.errors import LifecycleError
from tailrace.runtime.lifecycle import ENDS, TRANSITIONS, Event, Lifecycle, State


def test_every_state_has_a_line_and_every_state_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    reached, edge = {State.ASSIGNED}, [State.ASSIGNED]
    while edge:
        for following in TRANSITIONS[edge.pop()].values():
            if following not in reached:
                reached.add(following)
                edge.append(following)
    assert reached == set(State)


def test_revoked_fenced_and_failed_are_ends_and_every_other_state_leads_to_one() -> None:
    assert {State.REVOKED, State.FENCED, State.FAILED} == ENDS
    for state in set(State) - ENDS:
        assert set(TRANSITIONS[state].values()) & (ENDS | {State.RESTORING, State.RUNNING})


def test_only_a_restore_makes_a_partition_run_for_the_first_time_or_after_a_doubt() -> None:
    into_running = {
        (state, event) for state in State for event, to in TRANSITIONS[state].items() if to is State.RUNNING
    }
    assert into_running == {(State.RESTORING, Event.RESTORED), (State.COMMITTING, Event.COMMITTED)}
    for state in (State.IN_DOUBT, State.ROLLED_BACK):
        assert set(TRANSITIONS[state].values()) == {State.RESTORING, State.REVOKED}


@given(st.lists(st.sampled_from(Event)))
def test_an_event_moves_the_state_as_the_table_says_or_raises_and_moves_nothing(events) -> None:
    life = Lifecycle("app/0")
    for event in events:
        before = life.state
        if event in TRANSITIONS[before]:
            life.on(event)
            assert life.state is TRANSITIONS[before][event]
        else:
            with pytest.raises(LifecycleError, match="app/0"):
                life.on(event)
            assert life.state is before
        assert life.ended == (life.state in ENDS)


def test_what_needs_a_state_is_refused_in_another_and_says_what_to_do() -> None:
    life = Lifecycle("app/0")
    with pytest.raises(LifecycleError, match="must be running"):
        life.require(State.RUNNING, "commit")
    life.on(Event.LEFT)
    with pytest.raises(LifecycleError, match="Make a new partition"):
        life.require(State.RUNNING, "commit")
