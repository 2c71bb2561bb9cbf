"""History on Kafka is read like history on the embedded log: replayed, compared, rebuilt, answered from, dumped and redriven."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from secrets import token_hex

import pytest

from tailrace.cli import arguments
from tailrace.core.records import Output
from tailrace.history.dead_letters.redriving import close_letters
from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions
from tailrace.log.threads import in_thread
from tailrace.processes.app_loading import find_app
from tailrace.runtime.dead_letter_monitor import DeadLetterMonitor
from tests.cli.commands import done, run
from tests.history.differences import from_the_log
from tests.kafka.outside import Outside, await_written
from tests.kafka.processes import tailrace
from tests.runtime.processes import wait_until
from tests.serve.asking import serving
from tests.serve.depot import app as depot
from tests.serve.stocked import DEPOT, stock_up

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
    with closing(KafkaLog(url)) as log:
        prepare_topics(log, PLAN, create_declared=True)
        log.append_all(events())
    end = ("--end-of-input", "--after-end", "--allow-dead-letters")
    done("run", APP, "--log", url, "--state", folder / "state", *end)
    return url, folder


def test_a_replay_equals_the_service_byte_for_byte(lived: tuple[str, Path]) -> None:
    url, folder = lived
    compared = ("--state", folder / "state", "--compare", "--json")
    (found,) = done("replay", APP, "--log", url, *compared).lines
    assert (found["differences"], found["records"], len(found["compared"])) == (0, 5_000, 3)


BY_SPARK = pytest.param(("--engine", "spark"), marks=pytest.mark.nightly, id="spark")


@pytest.mark.parametrize("engine", [pytest.param(("--workers", 1), id="local"), BY_SPARK])
def test_a_rebuild_gives_the_state_of_the_service(
    lived: tuple[str, Path], tmp_path: Path, engine: tuple[object, ...]
) -> None:
    tailrace("rebuild", APP, "--log", lived[0], "--to", tmp_path, "--on-error", "dead-letter", *engine)
    assert from_the_log(APP, lived[0], snapshot=tmp_path) == []


def test_an_answer_is_that_of_get_until_the_changelog_is_deleted(kafka_url: str, tmp_path: Path) -> None:
    stock_up(kafka_url, tmp_path / "state")
    with serving(kafka_url) as asked:
        asked.until_ready()
        (told,) = done("get", DEPOT, "Depot", "north", "--json", "--log", kafka_url).lines
        wait_until(lambda: asked.ask("/actors/Depot/north").body["age_ms"] < 1_500, "it hears the end")
        said = asked.ask("/actors/Depot/north").body
        for name in ("age_ms", "judged_at_ms"):
            told.pop(name)
            said.pop(name)
        assert said.pop("offset") >= told.pop("offset"), "the follower also passes the marker of the commit"
        assert said == told
        Outside(kafka_url).delete(depot.plan().changelog_topic)
        wait_until(lambda: asked.ask("/actors/Depot/north").status == 503, "nothing is answered any more")
        wait_until(lambda: "no topic" in asked.ask("/actors/Depot/north").body["error"], "it says why")


def test_a_dump_names_the_offsets_that_an_open_transaction_hides(
    log: KafkaLog, kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("seen", TopicSettings(1))
    log.append_all([Output("seen", b"k", b"1", 1)])
    writer = log.writer("other")
    writer.append([Output("seen", b"k", b"open", 1)])
    await_written(log, "seen", 2)
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


# --- dead letters


def test_a_dead_letter_is_listed_and_redriven_once_also_after_a_move(
    lived: tuple[str, Path], kafka_url: str
) -> None:
    url, _ = lived
    (letter,) = done("dead-letters", "list", APP, "--log", url, "--json").lines
    assert letter["reason"] == "wrong-type"
    for sent in (1, 0):
        (ended,) = done("dead-letters", "redrive", APP, "--all", "--log", url, "--json").lines
        assert len(ended["done"]) == sent
    with closing(KafkaLog(url)) as log, closing(KafkaLog(kafka_url)) as moved:
        move_apps([PLAN], log, moved)
        again = close_letters(moved, PLAN.app, "redriven", lambda _: True, now_ms=1)
        assert (again.done, again.before) == ([], [letter["id"]])


def test_a_letter_is_not_taken_for_one_of_a_topic_that_was_there_before(
    log: KafkaLog, kafka_url: str
) -> None:
    prepare_topics(log, PLAN, create_declared=True)
    for number in (b"0", b"1"):
        origin = (("tailrace-topic", b"seen"), ("tailrace-partition", b"0"), ("tailrace-offset", number))
        headers = (("tailrace-reason", b"handler-failed"), *origin)
        with closing(KafkaLog(kafka_url)) as other:
            prepare_topics(other, PLAN)
            other.append_all([Output(PLAN.dead_letters_topic, None, number, 1, headers)], 0)
            assert close_letters(other, PLAN.app, "redriven", lambda _: True, now_ms=1).done == ["0-0"]
            assert close_letters(other, PLAN.app, "redriven", lambda _: True, now_ms=1).before == ["0-0"]
        Outside(kafka_url).delete(PLAN.dead_letters_topic)
    values = [one.value for number in range(PLAN.partitions) for one in scan(log, PLAN.inbox_topic, number)]
    assert sorted(filter(None, values)) == [b"0", b"1"]


def test_a_look_of_the_monitor_does_not_wait_for_the_transaction_of_its_own_process(kafka_url: str) -> None:
    topic = "shop.dead-letters"
    origin = {
        "reason": b"wrong-type",
        "error": b"int",
        "topic": b"purchases",
        "partition": b"1",
        "offset": b"7",
    }
    headers = tuple((f"tailrace-{name}", value) for name, value in origin.items())
    letter = Output(topic, b"b", b"{}", 5, headers)
    with closing(KafkaLog(kafka_url, LogOptions(hidden_s=600.0, patience_s=600.0))) as log:
        log.create_topic(topic, TopicSettings(2))
        monitor = DeadLetterMonitor(log, "shop")
        writer = log.writer("w")
        writer.append([letter] * 3, 0)
        await_written(log, topic, 2)
        look = in_thread("look", monitor.look)
        wait_until(look.done, "the look has ended", 60)
        assert not monitor.counts
        writer.commit(None, "")

        def counted() -> bool:
            monitor.look()
            return monitor.counts.total() == 3

        wait_until(counted, "the letters are counted")
        writer.append([letter] * 2, 1)
        writer.commit(None, "")
        assert monitor.finish().total() == 5, "the last look reads all that was committed"
        writer.close()
