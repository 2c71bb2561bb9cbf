"""A companion sees the life of its process. What fails in it costs the service nothing, unless it says that it must."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from tailrace.core.engine.task import CommitBatch
from tailrace.core.errors import HandlerError
from tailrace.core.rows import CUT_ROW
from tailrace.history.reading.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.companions import Companion
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare_log
from tests.runtime.served import make_app
from tests.runtime.tallies import check_all, poison, ticks

KEYS, ROUNDS = 10, 3
PLAN = make_app().plan()


class Guest(Companion):
    """Notes what it sees, and then does what a test wants of it."""

    name = "the guest"

    def __init__(self, act: Callable[[str], None] = lambda _: None) -> None:
        self.seen: list[str] = []
        self.numbers: list[int] = []
        self.cuts: dict[int, list[bytes]] = {}
        self._act = act

    def _sees(self, what: str) -> None:
        self.seen.append(what)
        self._act(what)

    def begin(self) -> None:
        self._sees("begin")

    def assigned(self, numbers: Collection[int], /) -> None:
        self.numbers += numbers
        self._sees("assigned")

    def look(self) -> None:
        self._sees("look")

    def committed(self, number: int, batch: CommitBatch, /) -> None:
        self.cuts.setdefault(number, []).append(batch.cut)
        self._sees("committed")

    def close(self) -> None:
        self._sees("close")


class Essential(Guest):
    essential = True


def failing(*when: str) -> Callable[[str], None]:
    def act(what: str) -> None:
        if what in when:
            raise ValueError(f"no {what}")

    return act


class House:
    """A log with ticks, and a service on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = EmbeddedLog(folder / "log")
        prepare_log(self.log, PLAN, create_declared=True)
        self.log.append_all(ticks(KEYS, ROUNDS))

    def run(self, *guests: Companion) -> None:
        """Run the service to the end of its input."""
        folder, app = self.folder, "tests.runtime.served:app"
        options = ServiceOptions(
            app, folder / "log", folder / "state", end_of_input=True, commit_interval_ms=1
        )
        Host(options, PLAN, guests).run()

    def cuts(self) -> dict[int, list[bytes | None]]:
        """The cuts of all commits, by task."""
        return {
            number: [one.value for one in scan(self.log, PLAN.changelog_topic, number) if one.key == CUT_ROW]
            for number in range(PLAN.partitions)
        }


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.log.close()


def test_it_sees_the_life_of_its_process_and_each_commit_once(house: House) -> None:
    guest = Guest()
    house.run(guest)
    assert guest.seen[:2] == ["begin", "assigned"]
    assert {*guest.seen[2:-1]} == {"look", "committed"}
    assert guest.seen[-1] == "close"
    assert guest.numbers == [0, 1, 2, 3]
    assert guest.cuts == house.cuts()


@pytest.mark.parametrize("when", ["begin", "assigned", "look", "committed", "close"])
def test_one_that_fails_is_logged_once_and_the_service_works_on(
    house: House, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    others = Guest()
    house.run(Guest(failing(when)), others)
    check_all(house.log, KEYS, ROUNDS)
    assert others.cuts == house.cuts()
    (said,) = [one.getMessage() for one in caplog.records if one.name == "tailrace.companions"]
    assert said == f"the guest has failed in {when}: ValueError('no {when}')"


@pytest.mark.parametrize("when", ["begin", "assigned", "look", "committed", "close"])
def test_the_service_ends_with_one_that_is_essential_and_keeps_what_is_committed(
    house: House, when: str
) -> None:
    guest, others = Essential(failing(when)), Guest()
    with pytest.raises(ValueError, match=f"no {when}"):
        house.run(guest, others)
    assert guest.seen[-1] == others.seen[-1] == "close"
    assert guest.cuts == {number: cuts for number, cuts in house.cuts().items() if cuts}
    house.run()
    check_all(house.log, KEYS, ROUNDS)


def test_what_fails_at_the_end_does_not_hide_why_the_service_has_ended(house: House) -> None:
    house.log.append(**poison("k1", KEYS * ROUNDS))
    with pytest.raises(HandlerError, match="a negative amount"):
        house.run(Essential(failing("close")))
