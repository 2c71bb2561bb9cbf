"""Redriving on any log: once, whoever else does it and whatever is cut short."""

from __future__ import annotations

import pytest

from tailrace.core.errors import CommitUnknownError, FencedError, ReplacedVersionError, UnknownTopicError
from tailrace.core.records import InputRecord, Output
from tailrace.history.dead_letters import redriving
from tailrace.history.dead_letters.letters import DeadLetter, dead_letters, parse_id, read
from tailrace.history.dead_letters.redriving import Closed, close_letters, closed_letters, last_open_letters
from tailrace.history.reading.stretches import scan
from tailrace.history.reading.upgrades import Upgrade, note_upgrade
from tailrace.log import TopicSettings
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
    for topic in ("in", "app.dead-letters", "app.inbox"):
        log.create_topic(topic, TopicSettings(2))
    writer = log.writer("task")
    writer.append([letter(number, b"k%d" % number) for number in range(10)])
    writer.commit()
    return log


def values(log) -> list[int]:
    return sorted(
        int(record.value or b"") for number in range(2) for record in scan(log, "app.inbox", number)
    )


def everything(_) -> bool:
    return True


def redrive(log, app="app", wanted=everything, now_ms=0) -> Closed:
    return close_letters(log, app, "redriven", wanted, now_ms=now_ms)


def test_of_two_who_redrive_at_once_one_is_fenced_and_nothing_is_doubled(log) -> None:
    def interrupted(one) -> bool:
        if one.record.value == b"5":
            assert len(redrive(log).done) == 10
        return True

    with pytest.raises(FencedError):
        redrive(log, wanted=interrupted)
    assert values(log) == list(range(10))


def test_what_another_redrives_before_the_writer_is_taken_over_is_left_out(log, monkeypatch) -> None:
    genuine = log.writer

    def writer(transactional_id: str):
        monkeypatch.undo()
        assert len(redrive(log).done) == 10
        return genuine(transactional_id)

    monkeypatch.setattr(log, "writer", writer)
    assert len(redrive(log).before) == 10
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
        redrive(log)
    redrive(log)
    assert values(log) == list(range(10))


def test_nothing_is_marked_of_what_could_not_be_appended(log) -> None:
    del log._partitions["app.inbox"]
    with pytest.raises(UnknownTopicError):
        redrive(log)
    assert closed_letters(log, "app") == {}


def test_a_letter_of_a_broadcast_topic_is_not_redriven(log) -> None:
    """Its old value would become the newest one in every task."""
    log.create_topic("app.in.broadcast", TopicSettings(2))
    writer = log.writer("task")
    writer.append([letter(10, topic="app.in.broadcast"), letter(11, topic="other")])
    writer.commit()
    outcome = redrive(log)
    assert (len(outcome.of_tables), values(log)) == (11, [11])


@pytest.mark.parametrize("step", ["begun", "fenced", "ready", "done", "given up"])
def test_nothing_is_redriven_while_an_upgrade_is_under_way(log, step) -> None:
    """The rebuild handles originals in their places, and the old version would handle what is redriven."""
    log.create_topic("app.upgrades", TopicSettings(1))
    upgrade = Upgrade(step=step, id="u", old="1", new="2", snapshots="s", code="c", before=0, generation=1)
    note_upgrade(log.writer("app.upgrades"), "app", upgrade)
    if step in ("done", "given up"):
        assert len(redrive(log).done) == 10
        return
    with pytest.raises(ReplacedVersionError, match="when the upgrade has ended"):
        redrive(log)
    assert (values(log), closed_letters(log, "app")) == ([], {})
    assert len(close_letters(log, "app", "dropped", everything, now_ms=0).done) == 10


def test_a_letter_that_is_cut_is_not_redriven_and_can_be_dropped(log) -> None:
    topic, key, value, at_ms, headers = letter(99)
    writer = log.writer("task")
    writer.append([Output(topic, key, value, at_ms, (*headers, ("tailrace-cut", b"40000000")))])
    writer.commit()
    outcome = redrive(log)
    assert (len(outcome.done), len(outcome.cut), 99 in values(log)) == (10, 1, False)
    assert close_letters(log, "app", "dropped", everything, now_ms=0).done == outcome.cut


def test_an_app_that_never_ran_has_no_dead_letters(log) -> None:
    with pytest.raises(UnknownTopicError, match="no dead letters of an app 'other'"):
        list(dead_letters(log, "other"))


def test_the_headers_of_the_last_failure_count_and_the_others_are_the_record_s_own() -> None:
    twice = (*letter(1).headers, ("tailrace-reason", b"undecodable"), ("tailrace-topic", b"again"))
    found = read("app", 3, InputRecord(17, 0, b"k", b"v", twice))
    wanted = ("3-17", "undecodable", "again", None)
    assert (found.id, found.reason, found.topic, found.origin_offset) == wanted
    assert found.record.headers == letter(1).headers


def test_numbers_that_no_log_has_are_no_numbers() -> None:
    assert parse_id("1-" + "9" * 18) == (1, 10**18 - 1)
    for wrong in ("9" * 19, "1" * 5_000, "\u0663", "-1", ""):
        assert parse_id(f"0-{wrong}") is parse_id(f"{wrong}-0") is None
        headers = ("tailrace-reason", b"x"), ("tailrace-partition", wrong.encode()), ("tailrace-offset", b"7")
        found = read("app", 0, InputRecord(0, 0, None, None, headers))
        assert (found.origin_partition, found.origin_offset) == (None, 7)


def test_a_record_without_any_of_our_headers_is_shown_all_the_same() -> None:
    found = read("app", 0, InputRecord(0, 0, None, None, (("x", b"\xff"),)))
    assert (found.reason, found.topic, found.record.headers) == ("foreign", None, (("x", b"\xff"),))


def test_the_last_open_letters_are_read_from_the_end(log, monkeypatch) -> None:
    writer = log.writer("task")
    for number in range(10, 3_000):
        writer.append([letter(number, b"k%d" % number)])
    writer.commit()
    redrive(log, wanted=lambda one: one.record.timestamp_ms in range(2_000, 2_995, 2))
    reads: list[InputRecord] = []

    def noted(app: str, partition: int, record: InputRecord) -> DeadLetter:
        reads.append(record)
        return read(app, partition, record)

    monkeypatch.setattr(redriving, "read", noted)
    open_ones = [one for one in range(3_000) if one not in range(2_000, 2_995, 2)]
    for most in (5, 50):
        reads.clear()
        found = [one.record.timestamp_ms for one in last_open_letters(log, "app", most)]
        assert found == open_ones[: -most - 1 : -1]
        assert len(reads) <= 2 * 2 * 10 * most
    assert len(last_open_letters(log, "app", 10_000)) == len(open_ones)
