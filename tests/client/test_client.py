"""The client on a log in a folder."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log.embedded import EmbeddedLog
from tests.client import laws
from tests.client.shop import Customer, Paid, app, payments


@pytest.fixture
def place(tmp_path: Path) -> str:
    log = EmbeddedLog(tmp_path / "log")
    prepare_topics(log, app.plan(), create_declared=True)
    log.close()
    return str(tmp_path / "log")


def test_what_is_sent_is_read_handled_and_asked_for(place: str, tmp_path: Path) -> None:
    laws.check_sent_handled_and_asked(place, str(tmp_path / "state"))


def test_threads_share_commits_and_each_event_is_there_once(place: str) -> None:
    laws.check_many_threads(place)


def test_a_send_that_is_refused_fails_alone(place: str) -> None:
    laws.check_one_bad_send_fails_alone(place)


def test_a_close_ends_the_sends_of_other_threads_first(place: str) -> None:
    laws.check_close_ends_sends_first(place)


def test_a_commit_that_is_interrupted_leaves_the_sends_of_others_unknown(place: str) -> None:
    laws.check_interrupted(place)


def test_an_event_is_sent_as_it_is_when_send_is_called(place: str) -> None:
    class Mutable(msgspec.Struct):
        who: tr.Key[str]
        cents: int

    other = tr.App("spent", partitions=3)
    topic = other.topic("payments", Mutable)

    async def send() -> list[int]:
        async with tr.AsyncClient(other, place) as client:
            event, tasks = Mutable("a", 0), list[asyncio.Task[dict[int, int]]]()
            for event.cents in range(5):
                tasks.append(asyncio.create_task(client.send(topic, event)))
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            return [one.event.cents async for one in client.read(topic) if one.event is not None]

    assert sorted(asyncio.run(send())) == [0, 1, 2, 3, 4]


def test_what_is_wrong_is_refused(place: str) -> None:
    laws.check_refusals(place)


def test_the_same_for_async_code(place: str) -> None:
    asyncio.run(laws.check_async(place))


def test_a_read_waits_for_the_first_record(place: str) -> None:
    with tr.Client(app, place) as client, tr.Client(app, place) as other:
        sender = threading.Timer(0.3, other.send, (payments, Paid("a", 1, 1)))
        sender.start()
        begun = time.monotonic()
        assert [one.event for one in client.read(payments, wait_s=60)] == [Paid("a", 1, 1)]
        assert time.monotonic() - begun < 50
        sender.join()


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(tr.TailraceError, match="no log"):
        tr.Client(app, tmp_path / "nothing")


def test_an_importer_of_an_app_does_not_import_the_client() -> None:
    program = "import sys, tailrace; assert 'tailrace.client' not in sys.modules; tailrace.Client"
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="Clients"):
        _ = tr.Clients  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_typed_client_gives_typed_instances(place: str) -> None:
    with tr.Client(app, place) as client:
        found: Customer | None = client.get(Customer, "a")
        assert found is None
