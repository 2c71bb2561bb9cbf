"""``tailrace explore``: the events of a log under many schedules."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import Ended, run
from tests.history.rebuilding.lived import live_on
from tests.testing.exploring import apps

counting = apps.counts()
racing = apps.last_write_wins()
passing = apps.passes_on()
HERE = "tests.cli.test_explore"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with forty events for each of two inputs."""
    folder = tmp_path_factory.mktemp("explored") / "log"
    log = EmbeddedLog(folder)
    for name in ("ones", "twos", "said"):
        log.create_topic(name, TopicSettings(2))
    writer = log.writer("loader")
    writer.append(
        Output(topic.name, event.key.encode(), msgspec.json.encode(event), event.at)
        for topic, event in apps.ticks(counting)
    )
    writer.commit()
    log.close()
    return folder


def explore(folder: Path, app: str, *arguments: object) -> Ended:
    return run("explore", f"{HERE}:{app}", "--log", folder, *arguments)


def test_an_app_that_does_not_depend_on_the_schedule_is_told_so(folder: Path) -> None:
    ended = explore(folder, "counting")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "20 schedules of counts, 1,600 events: all 3 keys equal\n"


def test_what_depends_on_the_schedule_is_told_with_offsets_of_the_log_and_exit_code_1(folder: Path) -> None:
    ended = explore(folder, "racing")
    assert ended.code == 1
    assert ended.out.startswith("20 schedules of last, 1,600 events: ")
    assert "depends on the schedule, 1: Last 'k" in ended.out
    assert "ones @" in ended.out
    again = explore(folder, "racing", "--json")
    (one,) = json.loads(again.out)["errors"]
    assert one["cause"] in ended.out
    alone = explore(folder, "racing", "--schedule", one["schedule"], "--json")
    assert json.loads(alone.out)["errors"][0]["cause"] == one["cause"]
    assert json.loads(alone.out)["schedules"] == 2


def test_a_part_of_the_log_can_be_taken(folder: Path) -> None:
    def records(*arguments: object) -> int:
        found: int = json.loads(explore(folder, "counting", "--json", "--schedules", 2, *arguments).out)[
            "records"
        ]
        return found

    assert records() == 80
    assert records("--records", 30) == 30
    ended = explore(folder, "counting", "--records", 30, "--schedules", 2)
    assert "note: only the first 30 records were taken; --records takes more" in ended.out


def test_what_the_app_has_written_is_not_taken_from_the_log(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    for name in ("checkouts", "payments"):
        log.create_topic(name, TopicSettings(4))
    writer = log.writer("loader")
    writer.append(
        Output(topic.name, topic.encode_key(event), topic.encode(event), event.at)
        for topic, event in apps.sales(selling, 10)
    )
    writer.commit()
    log.close()
    before = explore(tmp_path / "log", "selling", "--json", "--schedules", 3)
    live_on(tmp_path, f"{HERE}:selling")
    after = explore(tmp_path / "log", "selling", "--json", "--schedules", 3)
    assert before.code == after.code == 0
    assert json.loads(before.out)["records"] == json.loads(after.out)["records"] == 20


selling = apps.shop()


def test_the_order_of_outputs_can_be_said_not_to_matter(folder: Path) -> None:
    assert explore(folder, "passing").code == 1
    assert explore(folder, "passing", "--unordered", "said").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--unordered", "nothing"), 2, "declares no topic 'nothing'"),
        (("--schedules", "0"), 2, "--schedules"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(
    folder: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = explore(folder, "counting", *arguments)
    assert (ended.code, len(ended.err.splitlines())) == (code, 1)
    assert said in ended.err
