"""``tailrace log retain`` and ``clean``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import SHOP, done, run


@pytest.fixture
def log(tmp_path: Path):
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("plain", TopicSettings(1))
    log.create_topic("last", TopicSettings(1, compacted=True))
    log.append_all([Output("plain", b"k", bytes(1_000), number) for number in range(10)])
    log.append_all([Output("last", b"k", bytes(1_000), number) for number in range(10)])
    yield log
    log.close()


def test_a_topic_is_kept_for_as_long_as_it_is_said_and_for_ever_again(log: EmbeddedLog) -> None:
    done("log", "retain", "plain", "--retention", "90d", "--retention-bytes", "5000", "--log", log.path)
    assert log.topics()["plain"] == TopicSettings(1, retention_ms=90 * 86_400_000, retention_bytes=5_000)
    assert "90d, 5,000 bytes" in done("log", "list", "--log", log.path).out
    done("log", "retain", "plain", "--retention-bytes", "5000", "--log", log.path)
    assert log.topics()["plain"] == TopicSettings(1, retention_bytes=5_000)
    done("log", "retain", "plain", "--forever", "--log", log.path)
    assert log.topics()["plain"] == TopicSettings(1)


def test_cleaning_by_hand_gives_back_what_is_past_its_retention_and_what_was_written_over(
    log: EmbeddedLog,
) -> None:
    done("log", "retain", "plain", "--retention", "1d", "--log", log.path)
    said = done("log", "clean", "--log", log.path).out
    before, after = (int(word.replace(",", "")) for word in said.split() if word[0].isdigit())
    assert before > 20_000
    assert after < 3_000
    assert (log.start_offset("plain", 0), log.end_offset("plain", 0)) == (10, 10)
    assert (log.start_offset("last", 0), log.end_offset("last", 0)) == (0, 10)
    assert "bytes" in done("log", "clean", "--log", log.path).out


def test_who_must_not_miss_anything_is_not_cleaned_under(log: EmbeddedLog) -> None:
    with log.compaction_paused():
        ended = run("log", "clean", "--log", log.path)
    assert ended.code == 1
    assert "Wait for that process to finish" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["retain", "plain"], 2, "Give --retention, --retention-bytes or both; or only `--forever`"),
        (["retain", "plain", "--forever", "--retention", "1d"], 2, "only `--forever`"),
        (["retain", "plain", "--retention", "a while"], 2, "'a while' is not a duration"),
        (["retain", "plain", "--retention-bytes", "0"], 2, "--retention-bytes"),
        (["retain", "last", "--retention", "1d"], 1, "compacted"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(log: EmbeddedLog, arguments, code, said) -> None:
    ended = run("log", *arguments, "--log", log.path)
    assert ended.code == code
    (line,) = ended.err.splitlines()
    assert said in line


@pytest.mark.parametrize("name", ["shop.tape", "shop.changelog", "shop.dead-letters"])
def test_what_an_app_keeps_for_itself_is_not_given_a_retention(log: EmbeddedLog, name: str) -> None:
    done("topics", "apply", "--app", SHOP, "--log", log.path)
    ended = run("log", "retain", name, "--retention", "1d", "--log", log.path)
    assert ended.code == 2
    assert f"{name!r} belongs to the app 'shop'" in " ".join(ended.err.split())
    assert log.topics()[name].retention_ms is None
