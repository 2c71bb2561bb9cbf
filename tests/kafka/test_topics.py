"""``tailrace topics``: what is missing is created, what differs is named, and nothing is changed or deleted that must stay."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.errors import TopicMismatchError
from tailrace.core.records import Output
from tailrace.history.status.inspection import inspect_app
from tailrace.history.topics.topic_plan import check_topics
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.watermarks import decode
from tailrace.processes.app_loading import find_app
from tests.cli.commands import Ended, done, run
from tests.kafka.outside import Outside
from tests.kafka.processes import Members, await_tasks, stopped
from tests.runtime.processes import wait_until

APP = "tests.kafka.apps:app"
PLAN = find_app(APP).plan()
OWN = {"totals.changelog", "totals.tape", "totals.dead-letters", "totals.inbox"}
WATERMARKS = {"totals.watermarks", "totals.publishers"}
INTERNAL = OWN | WATERMARKS
DECLARED = {"seen", "totals"}


def planned(log: KafkaLog, *arguments: object) -> tuple[int, dict[str, Any]]:
    ended = run("topics", "plan", "--app", APP, "--log", log, "--json", *arguments)
    return ended.code, {one["topic"]: one for one in ended.lines}


def applied(log: KafkaLog, *arguments: object) -> Ended:
    return run("topics", "apply", "--app", APP, "--log", log, *arguments)


def config(log: KafkaLog, topic: str, name: str) -> str:
    return log.admin.details([topic])[topic].config[name]


def test_what_is_missing_is_created_and_then_all_is_right(log: KafkaLog) -> None:
    code, before = planned(log)
    assert code == 4
    assert set(before) == INTERNAL | DECLARED
    assert {one["action"] for one in before.values()} == {"create"}
    assert set(log.admin.names()) == set()
    check_topics(PLAN, log, APP)  # a service that starts creates them itself
    ended = applied(log, "--replication", 1, "--min-insync", 1)
    assert ended.code == 0
    assert ended.err.count("created ") == len(before)
    assert {one.replicas for one in log.admin.details(log.admin.names()).values()} == {1}
    code, after = planned(log)
    assert code == 0
    assert all(one["findings"] == [] for one in after.values())
    assert applied(log).err == ""
    _, found = planned(log, "--replication", 2)
    for one in found.values():
        wanted = ["replication factor"] if one["topic"] != "seen" else []
        assert [finding["setting"] for finding in one["findings"]] == wanted


def test_two_apps_are_one_plan_with_the_topics_that_they_share_once(log: KafkaLog) -> None:
    apps = ("--app", "services.flights.aircraft:app", "--app", "services.flights.airport:app")
    ended = run("topics", "plan", *apps, "--log", log, "--json")
    assert ended.code == 4
    found = {one["topic"]: one for one in ended.lines}
    assert len(found) == len(ended.lines)
    assert found["movements"]["roles"] == {"aircraft": "output", "airport": "input"}
    assert {"aircraft.tape", "airport.tape", "movements.watermarks"} <= set(found)


def test_a_setting_that_endangers_data_is_named_and_changed_by_apply_alone(
    log: KafkaLog, caplog: pytest.LogCaptureFixture
) -> None:
    assert applied(log).code == 0
    for topic in ("totals.tape", "totals.dead-letters"):
        log.admin.alter(topic, {"unclean.leader.election.enable": "true"})
    with caplog.at_level(logging.WARNING):  # what is only unsafe is logged once for all topics
        check_topics(PLAN, log, APP)
    (one,) = [record for record in caplog.records if record.name == "tailrace.service"]
    assert "unclean.leader.election.enable is true" in one.message
    assert "'totals.tape' and 'totals.dead-letters'" in one.message
    unsafe = {"retention.ms": "86400000", "unclean.leader.election.enable": "false"}
    log.admin.alter("totals.tape", {**unsafe, "max.message.bytes": "1000000"})
    log.admin.alter("totals", {"message.timestamp.after.max.ms": "3600000"})
    code, found = planned(log)
    assert code == 4
    assert found["totals.tape"]["action"] == "change"
    assert [[one["level"], one["setting"]] for one in found["totals.tape"]["findings"]] == [
        ["error", "retention.ms"],
        ["warning", "max.message.bytes"],
    ]
    assert found["totals"]["action"] == "refuse"
    ended = applied(log)
    assert ended.code == 4, "the declared topic is left alone"
    assert "changed totals.tape: retention.ms from 86400000 to -1" in ended.err
    wait_until(lambda: config(log, "totals.tape", "retention.ms") == "-1", "the brokers have applied it")
    assert config(log, "totals", "message.timestamp.after.max.ms") == "3600000"
    said = " ".join(ended.out.split())
    assert "kafka-configs.sh --alter --add-config message.timestamp.after.max.ms=" in said


def test_neither_cleaning_nor_partitions_are_changed_of_a_topic_with_data(log: KafkaLog) -> None:
    outside = Outside(log.place)
    outside.create("totals.changelog", 4, cleanup_policy="delete", retention_ms="-1")
    log.append_all([Output("totals.changelog", b"k", b"v", 7)])
    ended = applied(log)
    assert ended.code == 4
    assert "--change-cleanup" in " ".join(ended.out.split())
    assert not log.topics()["totals.changelog"].compacted
    assert applied(log, "--change-cleanup").code == 0
    assert log.topics()["totals.changelog"].compacted
    outside.delete("seen")
    outside.create("seen", 3)
    ended = applied(log)
    assert ended.code == 4
    for said in ("partitions is 3, and must be 4", "Another number of partitions"):
        assert said in " ".join(ended.out.split())
    with pytest.raises(TopicMismatchError, match="partitions is 3, and must be 4"):
        check_topics(PLAN, log, APP)  # as a service that starts


def test_a_service_does_not_start_on_topics_that_would_lose_its_data(log: KafkaLog, tmp_path: Path) -> None:
    assert applied(log).code == 0
    log.admin.alter("totals.changelog", {"cleanup.policy": "compact,delete"})
    ended = run("run", APP, "--log", log, "--state", tmp_path / "state")
    assert ended.code == 1
    said = "cleanup.policy is compact,delete, and must be compact: rows that have not changed for long are deleted"
    assert said in ended.err
    assert f"tailrace topics apply --app {APP} --log {log.place}" in ended.err
    assert config(log, "totals.changelog", "cleanup.policy") == "compact,delete"


def test_status_names_the_oldest_record_of_an_input_and_counts_dead_letters_without_markers(
    log: KafkaLog,
) -> None:
    outside = Outside(log.place)
    outside.create("seen", 4, retention_ms="-1")
    assert applied(log).code == 0
    log.append_all([Output("seen", b"k", b"v", 1_357_017_420_000 + at) for at in range(5)], 2)
    outside.delete_before("seen", 3, 2)
    assert "replayable since 2013-01-01T05:17:00.003Z" in done("status", APP, "--log", log).out
    with closing(log.writer("letters")) as writer:
        for value in (b"1", b"2"):
            writer.append([Output(PLAN.dead_letters_topic, b"key", value, 1)], 1)
            writer.commit()
    assert log.end_offset(PLAN.dead_letters_topic, 1) > 2
    tasks = inspect_app(PLAN, log, 0, lambda _: None).tasks
    assert [one.dead_letters for one in tasks] == [0, 2, 0, 0]


def test_a_topic_that_is_not_there_is_named_with_a_hint(kafka_url: str) -> None:
    ended = run("log", "append", "nosuch", "--key", "id", "--log", kafka_url, stdin=b'{"id":"1"}\n')
    assert ended.code == 1
    assert "there is no such topic in the log" in ended.err
    assert "Create it, or correct the name." in ended.err


# --- delete


@pytest.fixture
def run_once(log: KafkaLog, tmp_path: Path) -> KafkaLog:
    """A log on which the app has run to the end of one event."""
    done("topics", "apply", "--app", APP, "--log", log)
    log.append_all([Output("seen", b"k", b'{"key":"k","at_ms":1357017420000}', 1_357_017_420_000)])
    done("run", APP, "--log", log, "--state", tmp_path / "state", "--end-of-input", "--after-end")
    return log


def test_delete_removes_what_is_internal_and_the_offsets_and_keeps_what_is_declared(
    run_once: KafkaLog, tmp_path: Path
) -> None:
    log = run_once
    places = [(topic, number) for topic in DECLARED for number in range(4)]
    ends = {place: log.end_offset(*place) for place in places}
    ended = done("topics", "delete", "--app", "totals", "--yes", "--json", "--log", log)
    (said,) = ended.lines
    assert set(said["topics"]) == OWN
    assert set(said) == {"app", "topics", "records", "groups", "publishers"}
    assert said["groups"] == ["totals", "totals#begun"]
    assert len(said["publishers"]) == 4
    assert set(log.admin.names()) == DECLARED | WATERMARKS
    assert {place: log.end_offset(*place) for place in places} == ends
    assert {mark for (topic, _), mark in log.publications().items() if topic == "totals"} == {None}
    again = run("topics", "delete", "--app", "totals", "--yes", "--log", log)
    assert (again.code, "has no topics on this log" in again.err) == (2, True)
    # A new app of the same name begins at the beginning, whatever its old folder holds.
    end = ("--end-of-input", "--after-end", "--create-topics")
    done("run", APP, "--log", log, "--state", tmp_path / "state", *end)
    assert sum(log.end_offset("totals", number) for number in range(4)) > sum(
        end for (topic, _), end in ends.items() if topic == "totals"
    )


def test_an_app_that_runs_is_neither_deleted_nor_retired_and_one_that_has_stopped_is(
    run_once: KafkaLog, tmp_path: Path
) -> None:
    log, before = run_once, set(run_once.admin.names())
    with closing(Members(log.place, tmp_path)) as members:
        service = members.start(APP, "state")
        await_tasks(service, 4)
        for command in (["topics", "delete", "--app", APP, "--yes"], ["retire", "totals"]):
            ended = run(*command, "--log", log)
            assert ended.code == 1
            assert f"its group has 1 member: process {service.pid} on " in ended.err
        report = msgspec.json.decode(done("status", APP, "--log", log, "--json").out)
        assert {one["owner"]["pid"] for one in report["tasks"]} == {service.pid}
        assert all(one["owner"]["host"] and one["committed_ms"] for one in report["tasks"])
        stopped(service)
    report = msgspec.json.decode(done("status", APP, "--log", log, "--json").out)
    assert {one["owner"] for one in report["tasks"]} == {None}
    # Nothing is deleted without a yes.
    ended = run("topics", "delete", "--app", "totals", "--log", log)
    assert (ended.code, "--yes" in ended.err, "topic totals.tape" in ended.out) == (2, True, True)
    assert set(log.admin.names()) == before
    # It is retired, and its last watermark is not lost when the topic is compacted.
    marks = {publisher: mark for (topic, publisher), mark in log.publications().items() if topic == "totals"}
    highest = max(mark for mark in marks.values() if mark is not None)
    retired = msgspec.json.decode(done("retire", "totals", "--json", "--log", log).out)
    assert retired["publishers"] == [f"totals-{number}" for number in range(4)]
    assert retired["topics"] == [
        {"topic": "totals", "publishers": 4, "lowest_ms": highest, "highest_ms": highest}
    ]
    feed = "totals.watermarks"
    reader = log.reader({TopicPartition(feed, 0): 0})
    last = {
        one.key: decode(feed, one.offset, one.key, one.value) for one in reader.fetch(feed, 0, 1_000).records
    }
    reader.close()
    assert {one.name: (one.watermark_ms, one.before_ms) for one in last.values()} == {
        publisher: (None, mark) for publisher, mark in marks.items()
    }
    again = done("retire", "totals", "--log", log).out
    assert again.startswith("'totals' holds no reader back: it was retired before")
