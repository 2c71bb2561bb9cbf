"""A standby is where the group would put its task."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.runtime.standby_placement import heirs, placement


def spread(tasks: int, members: int) -> dict[str, list[int]]:
    return {f"m{number}": [*range(number, tasks, members)] for number in range(members)}


groups = st.builds(spread, st.integers(1, 40), st.integers(1, 8))


def test_of_two_processes_each_keeps_what_the_other_owns() -> None:
    assert placement({"a": [0, 2], "b": [1, 3]}, 1) == {0: ["b"], 2: ["b"], 1: ["a"], 3: ["a"]}


def test_a_process_without_tasks_is_the_first_heir() -> None:
    assert heirs({"a": [0], "b": [1], "spare": []}, {"a"}) == {0: "spare"}


def test_tasks_are_given_to_who_has_the_fewest_then_to_the_least_name_from_the_last_task_on() -> None:
    assert heirs({"a": [0, 1], "b": [2, 3], "c": [4]}, {"a"}) == {1: "c", 0: "b"}


@given(groups, st.integers(0, 8))
def test_every_task_has_as_many_standbys_as_wanted_or_as_there_are_others_each_elsewhere(
    members: dict[str, list[int]], count: int
) -> None:
    found = placement(members, count)
    for owner, tasks in members.items():
        for task in tasks:
            assert len(found[task]) == min(count, len(members) - 1)
            assert len({owner, *found[task]}) == len(found[task]) + 1


@given(groups)
def test_the_first_standby_is_the_heir_and_the_second_the_heir_of_both(members: dict[str, list[int]]) -> None:
    found = placement(members, 2)
    for owner, tasks in members.items():
        for task in tasks:
            if len(members) > 1:
                assert found[task][0] == heirs(members, {owner})[task]
            if len(members) > 2:
                assert found[task][1] == heirs(members, {owner, found[task][0]})[task]


@given(groups)
def test_the_standbys_of_a_process_are_spread(members: dict[str, list[int]]) -> None:
    found = placement(members, 1)
    for tasks in members.values():
        hosts = [found[task][0] for task in tasks if found[task]]
        even = len(tasks) / max(1, len(members) - 1)
        assert all(hosts.count(host) <= even + 2 for host in hosts)
