"""History is not read from a topic that was deleted and created again: the offsets on the tape mean other records there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tailrace.core.errors import ArchiveError, TopicReplacedError
from tailrace.history.moving.moving import move_apps
from tailrace.history.reading.opening import open_archive
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Destination, Failures, Order, Request, Source
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.archive import ArchiveOptions, archive_log
from tailrace.log.interface import Ends
from tailrace.log.kafka import KafkaLog
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import run
from tests.kafka.bad_input.shop import PLAN, Shop, serving

APP = "tests.kafka.bad_input.shop:app"


def lived(shop: Shop) -> None:
    """It has handled some orders, and stopped."""
    shop.order(20)
    shop.work()
    shop.stop()


def replayed(url: str, _: Path) -> None:
    log = KafkaLog(url)
    try:
        replay(PLAN, log, ReplayOptions(any_environment=True))
    finally:
        log.close()


def rebuilt(url: str, folder: Path, order: Order = "auto", archive: str | None = None) -> list[str]:
    asked = Request(
        app=APP,
        source=Source(log=url, archive=archive),
        to=Destination(uri=str(folder / "rebuilt")),
        failures=Failures(any_environment=True),
        order=order,
    )
    return rebuild(asked, LocalEngine(1)).notes


def snapshot(url: str, folder: Path) -> None:
    log = KafkaLog(url)
    try:
        take_snapshot(PLAN, log, Snapshots(str(folder / "snapshots"), PLAN.app))
    finally:
        log.close()


def moved(url: str, _: Path) -> None:
    source, target = KafkaLog(url), KafkaLog(f"{url.rstrip('.')}-moved.")
    try:
        move_apps([PLAN], source, target)
    finally:
        source.close()
        target.close()


@pytest.mark.parametrize("topic", ["orders", "shop.inbox", "shop.tape"])
def test_no_history_is_read_from_a_topic_that_was_replaced(
    kafka_url: str, tmp_path: Path, topic: str
) -> None:
    readers: list[Callable[[str, Path], object]] = [replayed, rebuilt, snapshot]
    with serving(kafka_url) as shop:
        lived(shop)
        for read in readers:
            read(kafka_url, tmp_path)
        shop.replace(topic)
        shop.order(60)  # more than the position in the old topic
    for read in (*readers, moved):
        with pytest.raises(
            TopicReplacedError, match="deleted and created again since the app 'shop'"
        ) as raised:
            read(kafka_url, tmp_path / "later")
        assert raised.value.topic == topic
    refused = run("archive", "--log", kafka_url, "--to", str(tmp_path / "archive"))
    assert refused.code
    assert f"{topic!r}" in refused.err
    assert "--topic" in refused.err
    report = json.loads(run("status", APP, "--log", kafka_url, "--json").out)
    assert any(problem.startswith(f"{topic} was deleted") for problem in report["problems"])


def test_canonical_order_runs_the_app_on_what_is_there_and_says_so(kafka_url: str, tmp_path: Path) -> None:
    with serving(kafka_url) as shop:
        lived(shop)
        shop.replace("orders")
        shop.order(60)
    notes = rebuilt(kafka_url, tmp_path, order="canonical")
    assert [note for note in notes if note.startswith("orders was deleted and created again")]


def test_a_topic_that_is_replaced_while_history_is_read_is_found_at_the_end(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(kafka_url) as shop:
        lived(shop)
        log, snapshots = KafkaLog(kafka_url), Snapshots(str(tmp_path / "snapshots"), PLAN.app)
        ends = log.ends

        def while_reading(topics: Iterable[str]) -> Ends:
            found = ends(topics)
            shop.replace("orders")
            shop.order(60)
            return found

        monkeypatch.setattr(log, "ends", while_reading)
        with pytest.raises(TopicReplacedError, match="deleted and created again"):
            take_snapshot(PLAN, log, snapshots)
        assert not snapshots.list()
        log.close()


def test_an_archive_is_continued_and_joined_only_with_the_topic_that_it_is_of(
    kafka_url: str, tmp_path: Path
) -> None:
    """Even if the records of both topics are the same."""
    with serving(kafka_url) as shop:
        lived(shop)
        archive = open_archive(str(tmp_path / "archive"))
        archive_log(shop.log, archive)
        shop.replace("orders")
        shop.now = 0
        shop.order(20)
        log = KafkaLog(kafka_url)
        with pytest.raises(
            ArchiveError, match="'orders' was deleted and created again since it was archived"
        ):
            archive_log(log, open_archive(str(tmp_path / "archive")), ArchiveOptions(["orders"]))
        log.close()
    with pytest.raises(TopicReplacedError):
        rebuilt(kafka_url, tmp_path, archive=str(tmp_path / "archive"))
    from_archive = Request(
        app=APP,
        source=Source(log=str(tmp_path / "none"), archive=str(tmp_path / "archive")),
        to=Destination(uri=str(tmp_path / "from-archive")),
        failures=Failures(any_environment=True),
    )
    assert rebuild(from_archive, LocalEngine(1)).same_rows
