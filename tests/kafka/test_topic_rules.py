"""Each rule for the topics of an app finds its deviation, says what it endangers, and changes only what loses nothing."""

from __future__ import annotations

import msgspec
import pytest

import tailrace as tr
from tailrace.history.reading.app_topics import needed_topics
from tailrace.log import TopicSettings
from tailrace.log.admin import Circumstances, Finding, Level, NeededTopic, Role, TopicDetails
from tailrace.log.kafka.administration import findings
from tailrace.log.kafka.topic_config import creation_config
from tailrace.log.options import NewTopics


class Event(msgspec.Struct, frozen=True):
    key: str


GOOD = TopicSettings(4)
COMPACTED = TopicSettings(4, compacted=True)
ROLES = ("tape", "inbox", "dead-letters", "repartition", "in-app", "input", "output")
ROLES_COMPACTED = ("changelog", "watermarks", "redriven")


def about(*, is_empty: bool = False, followed: TopicSettings | None = None) -> Circumstances:
    return Circumstances("shop", lambda _topic: is_empty, followed)


def found(
    role: Role,
    settings: TopicSettings = GOOD,
    replicas: int = 3,
    circumstances: Circumstances | None = None,
    brokers: int = 3,
    /,
    **changed: str,
) -> list[Finding]:
    """What is found in a topic with these settings, of which some are changed: ``retention_ms`` is ``retention.ms``."""
    wanted = COMPACTED if role in ROLES_COMPACTED else GOOD
    config = {
        **creation_config(TopicSettings(4, compacted=wanted.compacted)),
        "min.insync.replicas": "2" if replicas > 2 else "1",
        "min.compaction.lag.ms": str(2**63 - 1),
        **{name.replace("_", "."): value for name, value in changed.items()},
    }
    need = NeededTopic("t", role, wanted)
    details = TopicDetails(settings, replicas, config, brokers)
    return findings(need, details, circumstances or about(), NewTopics())


@pytest.mark.parametrize("role", [*ROLES, *ROLES_COMPACTED])
def test_a_topic_that_is_right_has_no_findings(role: Role) -> None:
    assert found(role, COMPACTED if role in ROLES_COMPACTED else GOOD) == []


@pytest.mark.parametrize("role", ["tape", "inbox", "repartition", "in-app", "input"])
def test_another_number_of_partitions_is_an_error_that_is_never_changed(role: Role) -> None:
    (one,) = found(role, TopicSettings(8))
    assert (one.level, one.setting, one.is_safe) == ("error", "partitions", False)
    assert "partitions=8" in one.fix
    assert "Another number of partitions" in one.fix
    assert found("output", TopicSettings(8)) == []


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_what_has_no_key_is_not_written_to_a_compacted_topic(policy: str) -> None:
    config = {"min.insync.replicas": "2", **creation_config(COMPACTED), "cleanup.policy": policy}
    details = TopicDetails(COMPACTED, 3, config, 3)
    for role in ("output", "in-app"):
        for is_keyless in (False, True):
            said = findings(
                NeededTopic("t", role, GOOD, is_keyless=is_keyless), details, about(), NewTopics()
            )
            errors = [(one.setting, one.wanted, one.is_safe) for one in said if one.level == "error"]
            assert errors == [("cleanup.policy", "delete", False)] * is_keyless
    assert (
        findings(
            NeededTopic("t", "output", GOOD, is_keyless=True),
            details._replace(settings=GOOD),
            about(),
            NewTopics(),
        )
        == []
    )
    app = tr.App("keyless", partitions=1)
    events, lines = app.topic("events", Event, key="key"), app.topic("lines", Event)

    @app.process(events)
    def forward(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(lines, event)

    assert {one.name: one.is_keyless for one in needed_topics(app.plan()) if not one.is_internal} == {
        "events": False,
        "lines": True,
    }


def of_a_table(settings: TopicSettings = COMPACTED, /, **changed: str) -> list[Finding]:
    config = creation_config(COMPACTED) | {name.replace("_", "."): value for name, value in changed.items()}
    need = NeededTopic("t", "output", COMPACTED)
    details = TopicDetails(settings, 3, {"min.insync.replicas": "2", **config}, 3)
    return findings(need, details, about(), NewTopics())


def test_a_table_is_compacted_alone_and_its_deletions_are_kept() -> None:
    assert of_a_table() == []
    for settings, changed in (
        (GOOD, {"cleanup_policy": "delete"}),
        (TopicSettings(4, compacted=True, retention_ms=9), {"cleanup_policy": "compact,delete"}),
    ):
        (one,) = of_a_table(settings, **changed)
        expected = ("error", "cleanup.policy", "compact", False)
        assert (one.level, one.setting, one.wanted, one.is_safe) == expected
        assert "give the table another name" in one.fix
    (kept,) = of_a_table(delete_retention_ms="1000")
    assert (kept.level, kept.setting, kept.is_safe) == ("warning", "delete.retention.ms", False)
    assert "keep keys that were deleted" in kept.why


WRONG: list[tuple[Role, TopicSettings, dict[str, str], Level, str, bool]] = [
    ("changelog", TopicSettings(4, compacted=True, retention_ms=9), {"cleanup_policy": "compact,delete"}, "error", "cleanup.policy", True),
    ("changelog", GOOD, {"cleanup_policy": "delete"}, "error", "cleanup.policy", False),
    ("tape", COMPACTED, {"cleanup_policy": "compact"}, "error", "cleanup.policy", False),
    ("tape", COMPACTED, {"cleanup_policy": "compact,delete"}, "error", "cleanup.policy", False),
    ("tape", TopicSettings(4, retention_ms=9), {"retention_ms": "9"}, "error", "retention.ms", True),
    ("inbox", TopicSettings(4, retention_bytes=9), {"retention_bytes": "9"}, "error", "retention.bytes", True),
    ("changelog", COMPACTED, {"delete_retention_ms": "1000"}, "error", "delete.retention.ms", True),
    ("inbox", GOOD, {"message_timestamp_type": "LogAppendTime"}, "error", "message.timestamp.type", True),
    ("in-app", GOOD, {"message_timestamp_type": "LogAppendTime"}, "error", "message.timestamp.type", False),
    ("output", GOOD, {"message_timestamp_type": "LogAppendTime"}, "warning", "message.timestamp.type", False),
    ("tape", GOOD, {"message_timestamp_after_max_ms": "3600000"}, "warning", "message.timestamp.after.max.ms", True),
    ("output", GOOD, {"message_timestamp_after_max_ms": "3600000"}, "warning", "message.timestamp.after.max.ms", False),
    ("in-app", GOOD, {"message_timestamp_before_max_ms": "1"}, "warning", "message.timestamp.before.max.ms", False),
    ("tape", GOOD, {"max_message_bytes": "1048588"}, "warning", "max.message.bytes", True),
    ("output", GOOD, {"max_message_bytes": "1000000"}, "warning", "max.message.bytes", False),
    ("tape", GOOD, {"unclean_leader_election_enable": "true"}, "warning", "unclean.leader.election.enable", True),
    ("output", GOOD, {"unclean_leader_election_enable": "true"}, "warning", "unclean.leader.election.enable", False),
    ("tape", GOOD, {"min_insync_replicas": "1"}, "warning", "min.insync.replicas", True),
    ("output", GOOD, {"min_insync_replicas": "1"}, "warning", "min.insync.replicas", False),
    ("tape", GOOD, {"min_insync_replicas": "4"}, "error", "min.insync.replicas", False),
    ("input", TopicSettings(4, retention_ms=9), {"retention_ms": "9"}, "note", "retention.ms", False),
    ("input", TopicSettings(4, retention_bytes=9), {}, "note", "retention.bytes", False),
    ("input", COMPACTED, {"cleanup_policy": "compact"}, "note", "cleanup.policy", False),
]  # fmt: skip


@pytest.mark.parametrize(("role", "settings", "changed", "level", "setting", "is_safe"), WRONG)
def test_each_deviation_has_its_level_and_is_changed_only_if_that_loses_nothing(
    role: Role, settings: TopicSettings, changed: dict[str, str], level: Level, setting: str, is_safe: bool
) -> None:
    (one,) = found(role, settings, **changed)
    assert (one.level, one.setting, one.is_safe) == (level, setting, is_safe)
    assert one.why
    assert one.is_safe or one.fix or one.level == "note"


def test_what_producers_do_to_an_input_is_theirs_and_the_cleaning_of_an_empty_topic_is_changed() -> None:
    assert found("input", message_timestamp_type="LogAppendTime") == []
    assert found("input", min_insync_replicas="4") == []
    (one,) = found("changelog", GOOD, 3, about(is_empty=True), cleanup_policy="delete")
    assert one.is_safe


@pytest.mark.parametrize(
    ("replicas", "brokers", "wanted"), [(1, 1, None), (1, 2, "2"), (1, 3, "3"), (3, 5, None), (2, 3, "3")]
)
def test_three_replicas_are_wanted_where_there_are_brokers_for_them(
    replicas: int, brokers: int, wanted: str | None
) -> None:
    said = [
        one for one in found("tape", GOOD, replicas, about(), brokers) if one.setting == "replication factor"
    ]
    assert [one.wanted for one in said] == ([] if wanted is None else [wanted])
    assert not any(one.is_safe for one in said)


def test_watermarks_are_kept_for_as_long_as_their_topic() -> None:
    kept = about(followed=TopicSettings(4, retention_ms=1_000))
    assert found("watermarks", COMPACTED, 3, kept, min_compaction_lag_ms="1000") == []
    (one,) = found("watermarks", COMPACTED, 3, about(followed=GOOD), min_compaction_lag_ms="1000")
    assert (one.setting, one.is_safe) == ("min.compaction.lag.ms", True)
    assert found("watermarks", COMPACTED, 3, about(followed=GOOD)) == []


def test_the_worst_comes_first() -> None:
    some = found("tape", TopicSettings(8, retention_ms=9), 1, max_message_bytes="9")
    levels = [one.level for one in some]
    assert levels == sorted(levels, key=("error", "warning", "note").index)
    assert {"error", "warning"} == set(levels)
