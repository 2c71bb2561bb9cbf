"""Random apps that are stopped for a long time and started again.

With "nights" a day ends as ``--until-end`` does: all is read, no input is idle and none has ended, and windows stay open. With "idle"
all inputs fall idle. With "both" they do, or the inputs end for good (``--end-of-input``), and continue all the same (``--after-end``).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tailrace.core.engine.task import TaskSettings
from tailrace.state import MemoryStore
from tailrace.testing.replaying import replay as replay_all
from tests.cast.webs import KEYS, Piece, oracle, pieces, records, web_of
from tests.proof.event_times import Live

DAY_MS = 10_000_000
"""Longer than all that a day leads to: no timer of one day is pending at another."""


EVENING_MS = DAY_MS // 2
"""Each key has an event then, where a day does not end with the end of its inputs: what falls idle has come to the same time."""


LONG_MS = 1_000_000


class Stopping(Live):
    """Partitions that stop together, for long, and start together again."""

    def start(self) -> None:
        """As a worker does it: all are restored and commit what they owe, before one of them takes a record."""
        self.phase = 0
        self.partitions = [self._started(number) for number in range(self.plan.partitions)]
        for one in self.partitions:
            if one.dirty:
                one.commit()

    def stop(self) -> None:
        """In good order, or without a word; and now and then they come up again with nothing on their disks."""
        for number, one in enumerate(self.partitions):
            if self.random.random() < 0.5:
                one.revoke()
            else:
                one.close()
            if self.random.random() < 0.5:
                self.stores[number] = MemoryStore()

    def rest(self) -> None:
        """Until all that may be idle is."""
        for _ in range(2 * self.plan.stages + 4):
            self.now += LONG_MS
            self.settle()


def check_days(seed: int, trace: list[str], ends: str) -> None:
    random = Random(seed)
    web = replace(web_of(random), idle_after="1000d" if ends == "nights" else "600s")
    trace += [str(node) for node in web.nodes]
    live = Stopping(web, random)
    live.passing_ms = random.choice((0, 5_000))
    total: dict[str, list[Piece]] = {name: [] for name in web.sources}
    days = random.randint(2, 4)
    for day in range(days):
        found = later(pieces(web, random), day * DAY_MS)
        if ends != "nights":
            for some in found.values():
                some += [Piece(f"k{key}", day * DAY_MS + EVENING_MS, 1) for key in range(KEYS)]
        elif random.random() < 0.3:  # one of them has nothing
            found[random.choice(web.sources)] = []
        for name, some in found.items():
            total[name] += some
            live.log.append_all(records(web, {name: some}))
        if day:
            live.start()
        live.settle()
        if day == days - 1 or (ends == "both" and random.random() < 0.5):
            live.end()
        elif ends != "nights":
            live.rest()
        live.stop()
        trace.append(f"day {day} stopped")
    came, wanted = live.results(), oracle(web, total)
    assert came == wanted, (
        f"missing {list((wanted - came).items())[:5]}, wrong {list((came - wanted).items())[:5]}"
    )
    live.start()
    assert live.late() == 0
    for one in live.partitions:
        one.revoke()
    report = replay_all(live.plan, live.log, live.stores, TaskSettings())
    assert not report.differences.count


def later(found: dict[str, list[Piece]], by_ms: int) -> dict[str, list[Piece]]:
    return {
        name: [Piece(one.key, one.at + by_ms, one.amount, one.hops) for one in some]
        for name, some in found.items()
    }
