"""A table on the embedded log, which a cleaning compacts."""

from __future__ import annotations

from pathlib import Path

from tailrace.core.records import Output
from tailrace.history.dead_letters.letters import dead_letters
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tests.tables.lived import Life, live, tailrace
from tests.tables.stock import PARTITIONS


def test_a_table_is_what_a_dict_is_before_and_after_a_compaction(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    life = Life(log, tmp_path)

    def compact() -> None:
        before = life.records
        log.clean()
        assert life.records < before

    live(life, compact)
    log.close()


def test_a_topic_that_is_not_compacted_is_no_table_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("stocks", TopicSettings(PARTITIONS))
    said = tailrace(
        *("run", "tests.tables.stock:writer", "--log", log.place, "--state", tmp_path / "state"),
        *("--create-topics", "--until-end"),
        code=1,
    )
    assert "cleanup.policy is delete, and must be compact" in said
    assert "give the table another name" in said
    log.close()


def test_a_dead_letter_of_a_table_is_not_redriven_as_its_newest_value(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("stocks", TopicSettings(PARTITIONS, compacted=True))
    app = ("tests.tables.stock:refusing", "--log", log.place, "--state", tmp_path / "state")
    run = ("run", *app, "--create-topics", "--until-end")
    tailrace(*run)
    log.append_all([Output("stocks", b"a", value, 5) for value in (b'{"item":"a","left":-1}', None)])
    tailrace(*run, "--allow-dead-letters")
    letters = list(dead_letters(log, "refusing"))
    assert [(one.topic, one.record.value) for one in letters] == [("stocks", b'{"item":"a","left":-1}')]
    said = tailrace("dead-letters", "redrive", "refusing", "--log", log.place, "--all")
    assert "1 dead letter came from tables, as old values" in said
    assert sum(1 for number in range(PARTITIONS) for _ in scan(log, "stocks", number)) == 2
    log.close()
