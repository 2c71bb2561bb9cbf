"""History on Kafka is read like history on the embedded log: replayed, compared, rebuilt, archived, redriven."""

from __future__ import annotations

import json
from pathlib import Path
from secrets import token_hex

import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest

import tailrace as tr
from tailrace.cli import arguments
from tailrace.core.declare.plan import Plan
from tailrace.core.records import Output
from tailrace.history.dead_letters import letters
from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.stretches import scan
from tailrace.history.retirement import retire_rebuilds
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions
from tailrace.processes.app_loading import find_app
from tests.cli.commands import run
from tests.kafka.apps import Total
from tests.kafka.commands import tailrace
from tests.soak.processes import wait_until

APP = "tests.kafka.apps:app"
PLAN = find_app(APP).plan()


def events() -> list[Output]:
    """5,000 events of 50 keys, some out of order, and one that cannot be read."""
    start = 1_700_000_000_000
    times = [(number * 7 % 50, start + number * 90 - number % 5 * 40) for number in range(5_000)]
    good = [Output("seen", b"k%d" % key, b'{"key":"k%d","at_ms":%d}' % (key, at), at) for key, at in times]
    return [*good, Output("seen", b"k1", b'{"key":"k1","at_ms":"never"}', start)]


@pytest.fixture(scope="module")
def lived(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A service that has run to its end, with an event that went to the dead letters: the URL and the folder of its state."""
    url, folder = f"kafka://{kafka}/history-{token_hex(6)}.", tmp_path_factory.mktemp("history")
    log = KafkaLog(url)
    prepare_topics(log, PLAN, create_declared=True)
    log.append_all(events())
    log.close()
    tailrace(
        "run",
        APP,
        "--log",
        url,
        "--state",
        folder / "state",
        "--end-of-input",
        "--after-end",
        "--allow-dead-letters",
    )
    return url, folder


@pytest.mark.parametrize("workers", [1, 2])
def test_a_replay_equals_the_service_byte_for_byte(lived, workers) -> None:
    url, folder = lived
    found = json.loads(
        tailrace(
            *("replay", APP, "--log", url, "--state", folder / "state", "--compare", "--json"),
            *("--workers", workers),
        )
    )
    assert found["differences"] == 0
    assert found["records"] == 5_000
    assert len(found["compared"]) == 3


@pytest.mark.parametrize(
    "options",
    [[], ["--order", "canonical"], ["--engine", "spark"], ["--archive"]],
    ids=["along the tape", "canonical", "by Spark", "with an archive"],
)
def test_a_rebuild_gives_the_state_of_the_service(lived, tmp_path, options) -> None:
    url, folder = lived
    if "--archive" in options:
        tailrace("archive", "--log", url, "--to", tmp_path / "archive")
        options = ["--archive", str(tmp_path / "archive")]
    tailrace(
        "rebuild", APP, "--log", url, "--to", tmp_path / "rebuilt", *options, "--on-error", "dead-letter"
    )
    found = json.loads(tailrace("compare", APP, folder / "state", tmp_path / "rebuilt", "--json"))
    assert found["differences"] == 0


def test_a_rebuild_writes_its_outputs_into_topics_once(lived, tmp_path) -> None:
    """Each task's outputs in their order, in the same partitions. Between tasks the order is that of their clocks."""
    url, _ = lived
    wanted = (
        "rebuild",
        APP,
        "--log",
        url,
        "--outputs",
        "topic:-again",
        "--on-error",
        "dead-letter",
        "--workers",
        1,
    )
    tailrace(*wanted, "--to", tmp_path / "rebuilt")
    log = KafkaLog(url)
    for number in range(PLAN.partitions):
        theirs, mine = ([one[1:] for one in scan(log, topic, number)] for topic in ("totals", "totals-again"))
        assert theirs
        assert sorted(mine, key=_origin) == sorted(theirs, key=_origin)
    retire_rebuilds(_reader_of_again(), log)  # as the first service does that reads them
    marks = [mark for (topic, _), mark in log.publications().items() if topic == "totals-again"]
    assert marks == [None] * PLAN.partitions
    log.close()
    refused = run(*map(str, wanted), "--to", str(tmp_path / "other"))
    assert refused.code
    assert "is not empty" in refused.err


def _reader_of_again() -> Plan:
    """An app that reads the topic of the rebuild."""
    app = tr.App("later", partitions=PLAN.partitions)
    again = app.topic("totals-again", Total)

    @app.actor
    class Later(tr.Actor):
        @tr.process(again)
        def read(self, event: Total, ctx: tr.Context[str]) -> None: ...

    return app.plan()


def _origin(record) -> tuple[bytes, int]:
    task, _, number = record[-1][-1][1].rpartition(b"/")
    return task, int(number)


def test_a_dead_letter_is_listed_and_redriven_once(lived) -> None:
    url, _ = lived
    (letter,) = map(json.loads, tailrace("dead-letters", "list", APP, "--log", url, "--json").splitlines())
    assert letter["reason"] == "wrong-type"
    for sent in (1, 0):
        done = json.loads(tailrace("dead-letters", "redrive", APP, "--all", "--log", url, "--json"))
        assert len(done["sent"]) == sent


def test_a_letter_is_not_taken_for_one_of_a_topic_that_was_there_before(kafka_url: str) -> None:
    log = KafkaLog(kafka_url)
    prepare_topics(log, PLAN, create_declared=True)
    for expected in ({"0-0": "0"}, {"0-0": "1"}):
        (number,) = expected.values()
        origin = (
            ("tailrace-topic", b"seen"),
            ("tailrace-partition", b"0"),
            ("tailrace-offset", number.encode()),
        )
        headers = (("tailrace-reason", b"handler-failed"), *origin)
        log.append_all([Output(PLAN.dead_letters_topic, None, number.encode(), 1, headers)], 0)
        assert letters.redrive(log, PLAN.app, lambda _: True, now_ms=1).sent == ["0-0"]
        assert letters.redrive(log, PLAN.app, lambda _: True, now_ms=1).before == ["0-0"]
        log.admin.delete_topics([PLAN.dead_letters_topic])
        log.close()
        log = KafkaLog(kafka_url)
        prepare_topics(log, PLAN)
    values = [value for number in range(4) for _, _, _, value, _ in scan(log, "seen", number)]
    log.close()
    assert sorted(filter(None, values)) == [b"0", b"1"]


@pytest.mark.parametrize("to", ["kafka", "embedded"])
def test_a_letter_that_was_redriven_before_a_move_is_not_redriven_after_it(
    kafka_url: str, tmp_path: Path, to: str
) -> None:
    """The versions that have committed the tasks are known after it, too."""
    log = KafkaLog(f"{kafka_url}one.")
    prepare_topics(log, PLAN, create_declared=True)
    log.append_all(events()[-5:])
    options = ("--state", tmp_path / "state", "--end-of-input", "--after-end", "--allow-dead-letters")
    tailrace("run", APP, "--log", log, *options)
    (id_,) = letters.redrive(log, PLAN.app, lambda _: True, now_ms=1).sent
    moved = KafkaLog(f"{kafka_url}two.") if to == "kafka" else EmbeddedLog(tmp_path / "moved")
    move_apps([PLAN], log, moved)
    again = letters.redrive(moved, PLAN.app, lambda _: True, now_ms=1)
    assert (again.sent, again.before) == ([], [id_])
    log.close()
    moved.close()


def test_a_dump_names_the_offsets_that_an_open_transaction_hides(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KafkaLog(kafka_url)
    log.create_topic("seen", TopicSettings(1))
    log.append_all([Output("seen", b"k", b"1", 1)])
    writer = log.writer("other")
    writer.append([Output("seen", b"k", b"open", 1)])
    wait_until(lambda: log.end_offset("seen", 0) == 3, "the record is at the broker", 60)
    log.append_all([Output("seen", b"k", b"2", 1)])
    with monkeypatch.context() as patch:
        patch.setattr(arguments, "open_log", lambda url, *_, **__: KafkaLog(url, LogOptions(hidden_s=0.5)))
        ended = run("log", "dump", "seen", "--log", kafka_url)
    assert (ended.code, [line["value"] for line in ended.lines]) == (0, [1])
    assert "not shown: offsets 2 to 4 of 'seen' partition 0" in ended.err
    writer.abort()
    ended = run("log", "dump", "seen", "--log", kafka_url)
    assert ([line["value"] for line in ended.lines], ended.err) == ([1, 2], "")
    writer.close()
    log.close()


def test_exports_are_those_of_the_committed_state(lived, tmp_path) -> None:
    url, _ = lived
    export = ("export", APP, "--log", url, "--to", "parquet")
    tailrace(*export, tmp_path / "now")
    tailrace(*export, tmp_path / "then", "--as-of", "2100-01-01")
    ended = run(*export, tmp_path / "seen", "--topic", "seen")
    assert (ended.code, "seen: 5,000 rows" in ended.out) == (3, True)
    tables = [one.name for one in (tmp_path / "now").iterdir() if one.is_dir()]
    assert tables
    for name in tables:
        now, then = (pq.read_table(tmp_path / one / name).drop_columns("as_of") for one in ("now", "then"))
        assert now.num_rows
        assert now.equals(then)
