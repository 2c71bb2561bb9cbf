"""Redriving on any log: once, whoever else does it and whatever is cut short."""

from __future__ import annotations

import pytest

from tailrace.core.engine.redriven import REDRIVEN_HEADER, redriven_header
from tailrace.core.errors import CommitUnknownError, FencedError, UnknownTopicError
from tailrace.core.records import InputRecord, Output
from tailrace.history.dead_letters.letters import dead_letters, notes, read, redrive
from tailrace.history.dead_letters.outcomes import Outcome, letters_with_outcomes, offsets_of
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicSettings
from tailrace.log.interface import TopicPartition
from tailrace.testing import MemoryLog


def letter(number: int, key: bytes | None = b"k", topic: str | None = "in") -> Output:
    said = {"reason": "handler-failed", "error": "ValueError: no", "partition": "1", "offset": str(number)}
    if topic is not None:
        said["topic"] = topic
    headers = tuple((f"tailrace-{name}", value.encode()) for name, value in said.items())
    return Output("app.dead-letters", key, b"%d" % number, number, (("own", b"h"), *headers))


@pytest.fixture
def log():
    log = MemoryLog()
    for topic in ("in", "app.dead-letters"):
        log.create_topic(topic, TopicSettings(2))
    writer = log.writer("task")
    writer.append([letter(number, b"k%d" % number) for number in range(10)])
    writer.commit()
    return log


def values(log) -> list[int]:
    return sorted(int(record.value or b"") for number in range(2) for record in scan(log, "in", number))


def everything(_) -> bool:
    return True


def test_each_letter_is_redriven_once(log) -> None:
    assert len(redrive(log, "app", everything, now_ms=0).sent) == 10
    assert redrive(log, "app", everything, now_ms=0).sent == []
    assert values(log) == list(range(10))
    assert len(notes(log, "app")) == 10


def test_of_two_who_redrive_at_once_one_is_fenced_and_nothing_is_doubled(log) -> None:
    def interrupted(one) -> bool:
        if one.record.value == b"5":
            assert len(redrive(log, "app", everything, now_ms=0).sent) == 10
        return True

    with pytest.raises(FencedError):
        redrive(log, "app", interrupted, now_ms=0)
    assert values(log) == list(range(10))


def test_what_another_redrives_before_the_writer_is_taken_over_is_left_out(log, monkeypatch) -> None:
    genuine = log.writer

    def writer(transactional_id: str):
        monkeypatch.undo()
        assert len(redrive(log, "app", everything, now_ms=0).sent) == 10
        return genuine(transactional_id)

    monkeypatch.setattr(log, "writer", writer)
    assert len(redrive(log, "app", everything, now_ms=0).before) == 10
    assert values(log) == list(range(10))


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_commit_of_unknown_outcome_is_settled_by_redriving_again(log, took_effect, monkeypatch) -> None:
    writer = log.writer("app.redrive")
    genuine = type(writer).commit

    def cut_short(self, *arguments):
        monkeypatch.undo()
        if took_effect:
            genuine(self, *arguments)
        raise CommitUnknownError("the commit was sent and nothing came back")

    monkeypatch.setattr(type(writer), "commit", cut_short)
    with pytest.raises(CommitUnknownError):
        redrive(log, "app", everything, now_ms=0)
    redrive(log, "app", everything, now_ms=0)
    assert values(log) == list(range(10))


def test_the_note_of_a_redrive_leads_to_the_record(log) -> None:
    """Though what is appended meanwhile moves it on."""
    log.append("in", b"k1", b"another", 0)
    ids = redrive(log, "app", everything, now_ms=77).sent
    found = notes(log, "app")
    assert {one.at_ms for one in found.values()} == {77}
    assert sorted(found) == sorted(ids)
    offsets = offsets_of(log, "app", found)
    for one in dead_letters(log, "app"):
        place = found[one.id].partition, offsets[one.id]
        (record,) = scan(log, "in", *place, place[1] + 1)
        assert record.value == one.record.value
        assert found[one.id].origin == (1, one.origin_offset)


def test_what_became_of_a_letter_is_told_as_far_as_the_log_tells_it() -> None:
    log, topic = MemoryLog(), "app.dead-letters"
    for name in ("in", "other", topic):
        log.create_topic(name, TopicSettings(1))
    writer = log.writer("task")
    writer.append([letter(number) for number in range(4)] + [letter(4, topic="other"), letter(5, topic=None)])
    writer.commit()
    ids = [one.id for one in dead_letters(log, "app")]
    redrive(log, "app", lambda one: one.id != ids[3], now_ms=7)
    again = ((REDRIVEN_HEADER, f"{topic}/{ids[1]}".encode()), *letter(1).headers[1:])
    writer.append([Output(topic, b"k", b"1", 0, again)])
    writer.commit({TopicPartition("in", 0): 2}, "app")
    found = letters_with_outcomes(log, "app")
    new = found[-1][0].id
    assert [outcome for _, outcome in found] == [
        Outcome("handled", 7),
        Outcome("failed", 7, new),
        Outcome("unread", 7),
        Outcome("pending"),
        Outcome("redriven", 7),  # the app has never read that topic
        Outcome("timer"),
        Outcome("pending"),
    ]
    assert letters_with_outcomes(log, "app", lambda one: one.id == ids[0]) == found[:1]


def test_nothing_is_marked_of_what_could_not_be_appended(log) -> None:
    writer = log.writer("task")
    writer.append([letter(10, b"a", topic="gone")])
    writer.commit()
    with pytest.raises(UnknownTopicError):
        redrive(log, "app", everything, now_ms=0)
    assert (values(log), notes(log, "app")) == ([], {})


def test_an_app_that_never_ran_has_no_dead_letters(log) -> None:
    with pytest.raises(UnknownTopicError, match="no dead letters of an app 'other'"):
        list(dead_letters(log, "other"))


def test_the_headers_of_the_last_failure_count_and_the_others_are_the_record_s_own() -> None:
    twice = (*letter(1).headers, ("tailrace-reason", b"undecodable"), ("tailrace-topic", b"again"))
    found = read(3, InputRecord(17, 0, b"k", b"v", twice))
    assert (found.id, found.reason, found.topic, found.origin_offset) == (
        "3-17",
        "undecodable",
        "again",
        None,
    )
    assert found.record.headers == letter(1).headers


def test_a_record_without_any_of_our_headers_is_shown_all_the_same() -> None:
    found = read(0, InputRecord(0, 0, None, None, (("x", b"\xff"),)))
    assert (found.reason, found.topic, found.record.headers) == ("foreign", None, (("x", b"\xff"),))


def test_a_letter_is_not_taken_for_the_failure_of_one_with_its_id_in_a_deleted_topic() -> None:
    """Its record was redriven for letter 0-0 of the topic that was there before; it failed again as letter 0-0 of the new one."""
    log = MemoryLog()
    for topic in ("in", "app.dead-letters"):
        log.create_topic(topic, TopicSettings(1))
    said = {"reason": "handler-failed", "topic": "in", "partition": "0", "offset": "1"}
    headers = tuple((f"tailrace-{name}", value.encode()) for name, value in said.items())
    again = redriven_header("app.dead-letters", "0-0", (0, 0))
    writer = log.writer("task")
    writer.append([Output("in", b"k", b"1", 1), Output("in", b"k", b"1", 2)])
    writer.append([Output("app.dead-letters", b"k", b"1", 3, (again, *headers))])
    writer.commit()
    assert redrive(log, "app", lambda _: True, now_ms=4).sent == ["0-0"]
    ((_, outcome),) = letters_with_outcomes(log, "app")
    assert (outcome.state, outcome.failed_as) == ("redriven", None)
