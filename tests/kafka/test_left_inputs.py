"""An input that was left and is declared again, where the group of the app loses its offsets: after moves, and in a state from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tailrace.core.errors import TopicReplacedError
from tailrace.history.moving.moving import move_apps
from tailrace.history.snapshots.start_from_snapshot import Start, open_start
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.state.snapshots import Snapshots
from tests.history.tills import EVERY, Tills, payments, tills
from tests.kafka.expiring import expire
from tests.soak.processes import wait_until


class Life:
    """Logs on which the app may live. It has left the cards on the first of them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.closing = ExitStack()
        self.admin = AdminClient({"bootstrap.servers": url.split("//")[1].split("/", maxsplit=1)[0]})
        self.service: Tills

    def log(self, name: str) -> EmbeddedLog | KafkaLog:
        log = EmbeddedLog(self.folder / "log") if name == "embedded" else KafkaLog(f"{self.url}{name}.")
        self.closing.callback(log.close)
        return log

    def begin(self, name: str) -> None:
        self.service = Tills(self.log(name))
        self.pay_both()
        self.service.run("cash", "cards")
        self.service.pay("cash", EVERY, 20)
        self.service.run("cash")

    def move(self, name: str) -> None:
        target = self.log(name)
        move_apps([tills("cash")], self.service.log, target)
        self.service.log = target
        self.expire()

    def expire(self, app: str = "tills") -> None:
        if isinstance(self.service.log, KafkaLog):
            expire(self.admin, self.service.log, app)

    def pay_both(self) -> None:
        self.service.pay("cards", EVERY, 20)
        self.service.pay("cash", EVERY, 20)

    def take(self, *inputs: str) -> str:
        """The id of a snapshot."""
        assert isinstance(self.service.log, KafkaLog)
        snapshots = Snapshots(str(self.folder / "snapshots"), "tills")
        return take_snapshot(tills(*inputs), self.service.log, snapshots).id

    def start(self, name: str) -> Start:
        """A start of the app under another name, from a snapshot."""
        made, plan = self.take("cash"), tills("cash", name=name)
        prepare_log(self.service.log, plan, create_declared=True)
        found = open_start(f"{self.folder / 'snapshots'}#{made}", "tills", plan, self.service.log)
        assert found is not None
        return found

    def replace_cards(self) -> None:
        """Delete the topic; it is created again when the app declares it."""
        log = self.service.log
        assert isinstance(log, KafkaLog)
        for done in self.admin.delete_topics([f"{log.place.rpartition('/')[2]}cards"]).values():
            done.result()
        wait_until(lambda: "cards" not in log.topics(), "the topic is deleted")
        log.close()
        self.service.log = KafkaLog(log.place)
        self.closing.callback(self.service.log.close)


@pytest.fixture
def life(kafka_url: str, tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path, kafka_url)
    yield made
    made.closing.close()


@pytest.mark.parametrize("places", [("embedded", "one", "two"), ("one", "embedded")])
def test_it_continues_where_it_was_left_after_moves(life: Life, places: tuple[str, ...]) -> None:
    first, *others = places
    life.begin(first)
    for one in others:
        life.move(one)
        life.service.pay("cash", EVERY, 20)
        life.service.run("cash")
        life.expire()
    life.pay_both()
    life.service.run("cash", "cards")


def test_after_a_move_it_must_be_the_topic_that_was_left(life: Life) -> None:
    life.begin("embedded")
    life.move("one")
    life.replace_cards()
    prepare_log(life.service.log, tills("cash", "cards"), create_declared=True)
    life.service.log.append_all(payments("cards", EVERY))
    with pytest.raises(TopicReplacedError, match=r"deleted and created again since the app.*topic 'cards'"):
        life.service.run("cash", "cards")


def test_a_move_leaves_the_position_in_a_topic_behind_that_was_replaced(life: Life) -> None:
    """The topic of this name is another one, of which the state has nothing."""
    life.begin("one")
    life.replace_cards()
    life.move("two")
    assert "cards" not in life.service.log.topics()
    prepare_log(life.service.log, tills("cash", "cards"), create_declared=True)
    life.pay_both()
    life.service.run("cash", "cards")


def test_it_continues_where_it_was_left_in_a_state_from_a_snapshot(life: Life) -> None:
    life.begin("one")
    life.expire()
    start = life.start("other")
    life.service.pay("cash", EVERY, 20)
    life.service.run("cash", name="other", start=start)
    life.expire("other")
    life.pay_both()
    life.service.run("cash", "cards", name="other")


def test_no_snapshot_is_taken_of_an_input_that_was_replaced_since_it_was_left(life: Life) -> None:
    life.begin("one")
    life.replace_cards()
    assert life.take("cash")
    prepare_log(life.service.log, tills("cash", "cards"), create_declared=True)
    with pytest.raises(TopicReplacedError, match="topic 'cards'"):
        life.take("cash", "cards")
