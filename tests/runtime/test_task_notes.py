"""A note tells the next owner of a task which versions of the app have had it, and what the last one has read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import InputsChangedError, ReplacedVersionError
from tailrace.runtime.task_notes import TaskNotes, version_of


class Visit(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Kept:
    """The notes of a group, for one member."""

    def __init__(self, texts: dict[int, str], member_id: str) -> None:
        self.texts = texts
        self.member_id = member_id
        self.left = 0

    def notes(self) -> dict[int, str]:
        return self.texts

    def leave_note(self, number: int, text: str) -> None:
        self.left += 1
        self.texts[number] = text


def plan(version: str, topic: str = "came") -> Plan:
    app = tr.App("visits", version=version, partitions=2)
    came = app.topic(topic, Visit)

    @app.actor
    class Counter(tr.Actor):
        count: int = 0

        @tr.process(came)
        def counted(self, _event: Visit, _ctx: tr.Context[str]) -> None:
            self.count += 1

    return app.plan()


class Group:
    """Members of an app's group, one after the other."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}

    def takes(self, number: int, made: Plan, member: str = "m", **options: Any) -> int:
        """A member takes a task. Returns how many notes it has left."""
        kept = Kept(self.texts, member)
        tasks: Any = kept
        TaskNotes(made, tasks, **options).take(number)
        return kept.left

    def owners(self) -> dict[int, str]:
        kept: Any = Kept(self.texts, "m")
        return TaskNotes(plan("1"), kept).owners()


def test_a_version_takes_its_own_task_again_and_a_new_one_that_of_an_older() -> None:
    group = Group()
    assert group.takes(0, plan("1")) == 1
    assert group.takes(0, plan("1")) == 0  # the note says it already
    for version in "1223":
        group.takes(0, plan(version), f"of {version}")
    assert group.owners() == {0: "of 3"}


@pytest.mark.parametrize("replaced", "12")
def test_a_version_that_was_replaced_is_refused_and_leaves_the_note_as_it_is(replaced: str) -> None:
    group = Group()
    for version in "123":
        group.takes(0, plan(version))
    before = dict(group.texts)
    with pytest.raises(ReplacedVersionError, match="version '3'"):
        group.takes(0, plan(replaced))
    assert group.texts == before
    group.takes(1, plan(replaced))  # a task that no newer version has had


def test_after_a_downgrade_the_newer_version_is_the_one_that_was_replaced() -> None:
    group = Group()
    for version in "12":
        group.takes(0, plan(version))
    group.takes(0, plan("1"), downgrade=True)
    group.takes(0, plan("1"))
    with pytest.raises(ReplacedVersionError, match="version '1'"):
        group.takes(0, plan("2"))


def test_an_app_that_reads_other_topics_is_another_service_unless_it_is_said_that_it_has_changed() -> None:
    group = Group()
    group.takes(0, plan("1"))
    with pytest.raises(InputsChangedError, match="'parcels'"):
        group.takes(0, plan("2", "parcels"))
    group.takes(0, plan("2", "parcels"), change_inputs=True)
    assert version_of(plan("1")) != version_of(plan("1", "parcels"))


def test_a_note_of_many_versions_fits_into_what_brokers_keep_and_still_has_the_last_ones() -> None:
    group = Group()
    for number in range(60):
        group.takes(0, plan(f"{number}-" + "long" * 50))
    assert len(group.texts[0].encode()) < 4_096
    with pytest.raises(ReplacedVersionError):
        group.takes(0, plan("55-" + "long" * 50))
