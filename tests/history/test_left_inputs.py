"""An input that an app has left continues where it was left when it is declared again: after moves, and in states from snapshots.

The oracle is the number of payments of each key: an event that counts twice, or never, changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.errors import OtherHistoryError
from tailrace.history.moving.moving import move_apps
from tailrace.history.snapshots.start_from_snapshot import Start, open_start
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.state.snapshots import Snapshots
from tests.history.rebuilding import lived
from tests.history.tills import EVERY, KEYS, PARTITIONS, Tills, payments, tills

CASH, BOTH = "tests.history.tills:cash", "tests.history.tills:both"


class Life(Tills):
    """An app that has left the cards."""

    def __init__(self, folder: Path, keys: Sequence[str] = EVERY) -> None:
        self.folder = folder
        self.logs = ExitStack()
        super().__init__(self.new_log("log"))
        self.pay("cash", keys, 30)
        self.pay("cards", keys, 50)
        self.run("cash", "cards")
        self.pay("cash", keys, 20)
        self.run("cash")
        self.place = str(folder / "snapshots")

    def new_log(self, name: str) -> EmbeddedLog:
        log = EmbeddedLog(self.folder / name)
        self.logs.callback(log.close)
        return log

    def move(self, *inputs: str) -> None:
        target = self.new_log(f"log-{len(list(self.folder.iterdir()))}")
        assert isinstance(self.log, EmbeddedLog)
        move_apps([tills(*inputs)], self.log, target)
        self.log = target

    def take(self, *inputs: str) -> str:
        return take_snapshot(tills(*inputs), self.log, Snapshots(self.place, "tills")).id

    def rebuild(self, app: str, base: str, *, order: str) -> str:
        options: dict[str, Any] = {"base": self.place, "base_id": base, "any_environment": True}
        _, snapshot = lived.done(self.folder, app, order=order, **options)
        return snapshot.manifest.id

    def start(self, snapshot: str, name: str, *inputs: str, of: str = "tills") -> Start:
        plan = tills(*inputs, name=name)
        prepare_log(self.log, plan, create_declared=True)
        found = open_start(f"{self.place}#{snapshot}", of, plan, self.log)
        assert found is not None
        return found

    def go_on(self, name: str = "tills") -> None:
        """The app reads both inputs again."""
        self.pay_both()
        self.run("cash", "cards", name=name)

    def pay_both(self) -> None:
        self.pay("cards", EVERY, 20)
        self.pay("cash", EVERY, 20)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path)
    yield made
    made.logs.close()


def test_it_continues_where_it_was_left_after_two_moves(life: Life) -> None:
    for _ in range(2):
        life.pay_both()
        life.move("cash")
    life.go_on()


def test_an_input_that_was_left_right_before_a_move_continues(life: Life) -> None:
    life.pay("cards", EVERY, 20)
    life.run("cash", "cards")
    life.move("cash")
    life.run("cash")
    life.go_on()


@pytest.mark.parametrize("then", [("cash",), ("cash", "cards")], ids=["left", "taken up at once"])
def test_it_continues_where_it_was_left_under_another_name(life: Life, then: tuple[str, ...]) -> None:
    start = life.start(life.take("cash"), "other", *then)
    life.pay("cash", EVERY, 20)
    if "cards" in then:
        life.pay("cards", EVERY, 20)
    life.run(*then, name="other", start=start)
    life.go_on("other")


def test_it_continues_where_it_was_left_in_a_state_that_began_so_twice(life: Life) -> None:
    life.pay("cash", EVERY, 20)
    life.run("cash", name="other", start=life.start(life.take("cash"), "other", "cash"))
    snapshots = Snapshots(life.place, "other")
    found = take_snapshot(tills("cash", name="other"), life.log, snapshots).id
    life.pay("cash", EVERY, 20)
    life.run("cash", name="third", start=life.start(found, "third", "cash", of="other"))
    life.go_on("third")


def test_a_snapshot_of_before_it_was_left_has_its_position_too(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.run("cash", "cards")
    life.pay("cash", EVERY, 20)
    life.run("cash", name="other", start=life.start(life.take("cash", "cards"), "other", "cash"))
    life.go_on("other")
    life.logs.close()


def copied(life: Life, cards: list[str]) -> None:
    """The app is to go on with a log that has the same payments in cash, and these with cards."""
    before, life.log = life.log, life.new_log("copy")
    for topic in ("cash", "cards"):
        life.log.create_topic(topic, before.topics()[topic])
    life.log.append_all(payments("cash", many(30)))
    life.log.append_all(payments("cash", many(20)))
    life.log.append_all(payments("cards", cards))


def many(count: int) -> list[str]:
    return [EVERY[n % len(EVERY)] for n in range(count)]


def test_it_continues_where_it_was_left_on_another_log_with_the_same_records(life: Life) -> None:
    start = life.take("cash")
    copied(life, many(50))
    life.pay("cash", EVERY, 20)
    life.run("cash", name="other", start=life.start(start, "other", "cash"))
    life.go_on("other")


def test_another_topic_of_its_name_is_read_from_the_beginning(life: Life) -> None:
    start = life.take("cash")
    cards = [KEYS[0][0], KEYS[1][0], *many(50)]
    copied(life, cards)
    with pytest.raises(OtherHistoryError, match=r"has read 'cards' .* another record at offset \d+"):
        life.run("cash", "cards", start=life.start(start, "tills", "cash", "cards"))
    life.pay("cash", EVERY, 20)
    life.run("cash", name="other", start=life.start(start, "other", "cash"))
    life.paid.update(cards)
    life.go_on("other")


@pytest.mark.parametrize("order", ["tape", "stages"])
@pytest.mark.parametrize("app", [CASH, BOTH])
def test_a_state_rebuilt_from_a_snapshot_continues_where_it_was_left(
    life: Life, order: str, app: str
) -> None:
    base = life.take("cash")
    life.pay("cash", EVERY, 20)
    life.run("cash")
    if app == BOTH:
        life.pay_both()
        life.run("cash", "cards")
    made = life.rebuild(app, base, order=order)
    life.pay("cash", EVERY, 20)
    life.run("cash", name="other", start=life.start(made, "other", "cash"))
    life.go_on("other")


def test_a_snapshot_does_not_name_inputs_that_the_app_reads(life: Life) -> None:
    life.go_on()
    found = Snapshots(life.place, "tills").open(life.take("cash", "cards")).manifest
    assert [one.provenance.abandoned for one in found.tasks] == [{}] * PARTITIONS
