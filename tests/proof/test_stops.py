"""A stop is no event: what is appended later comes to what it would have come to without one, by an oracle over all days.

With "nights" a day ends as ``--until-end`` does: all is read, no input is idle and none has ended, and windows stay open. With "idle"
all inputs fall idle. With "both" they do, or the inputs end for good (``--end-of-input``), and continue all the same (``--after-end``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec
import pytest

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.progress import last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore
from tailrace.testing import MemoryLog
from tailrace.testing.replaying import replay as replay_all
from tests.cast.webs import KEYS, Piece, Result, Web, oracle, pieces, records, web_of
from tests.proof.seeds import told

DAY_MS = 10_000_000
"""Longer than all that a day leads to: no timer of one day is pending at another."""


EVENING_MS = DAY_MS // 2
"""Each key has an event then, where a day does not end with the end of its inputs: what falls idle has come to the same time."""


LONG_MS = 1_000_000


class Stopping:
    """All partitions of an app, polled and committed in any order. They stop together, for long, and start together again."""

    def __init__(self, web: Web, random: Random) -> None:
        self.plan: Plan = web.app.plan()
        self.random = random
        self.log = MemoryLog(markers=random.random() < 0.5)
        prepare_topics(self.log, self.plan, create_declared=True)
        self.now = 1_000_000
        self.phase = 0
        self.passing_ms = 0
        """How far the clock moves from one step to the next, in milliseconds."""
        self.stores = [MemoryStore() for _ in range(self.plan.partitions)]
        self.commit_odds = random.choice((0.02, 0.2, 0.9))
        self.budget = random.choice((1, 3, 10_000))
        self.partitions = [self._started(number) for number in range(self.plan.partitions)]

    def _started(self, number: int) -> Partition:
        settings = PartitionSettings(
            commit_interval_ms=1 << 60,
            after_end=True,
            task=TaskSettings(firing_budget=self.budget, timers_in_memory=8),
        )
        partition = Partition(
            self.plan, number, self.log, self.stores[number],
            lambda: self.now, lineage=b"web", settings=settings,
        )  # fmt: skip
        partition.restore()
        if self.phase:
            partition.end_input(self.phase)
        return partition

    def step(self) -> bool:
        """Something happens to one of the partitions; whether there was anything to do."""
        random, number = self.random, self.random.randrange(self.plan.partitions)
        self.now += self.passing_ms
        one = self.partitions[number]
        worked = one.poll(random.choice((1, 3, 20, 1_000)))
        if random.random() < self.commit_odds and one.dirty:
            one.commit()
            worked = True
        return worked

    def settle(self) -> None:
        """Until nothing moves any more, and all is committed."""
        for _ in range(10_000):
            for _ in range(3 * self.plan.partitions):
                self.step()
            moved = False
            for one in self.partitions:
                while one.poll(1_000):
                    moved = True
                if one.dirty:
                    one.commit()
                    moved = True
            if not moved:
                return
        raise AssertionError("it never comes to rest")

    def end(self) -> None:
        """The end of input goes through the app, level by level."""
        while self.phase < last_phase(self.plan):
            self.phase += 1
            for one in self.partitions:
                assert one.state is State.RUNNING
                one.end_input(self.phase)
            self.settle()

    def results(self) -> Counter[Result]:
        decode = msgspec.json.Decoder(Result).decode
        return Counter(decode(record.value or b"") for record in self.log.read("results"))

    def late(self) -> int:
        return sum(one.task.totals.late for one in self.partitions)

    def behind(self) -> int:
        return sum(sum(one.promises.behind.values()) for one in self.partitions)

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
    assert live.late() == 0, "something was late, and nothing came late from outside"
    assert live.behind() == 0, "something was emitted behind what had been published"
    for one in live.partitions:
        one.revoke()
    report = replay_all(live.plan, live.log, live.stores, TaskSettings())
    assert not report.differences.count


def later(found: dict[str, list[Piece]], by_ms: int) -> dict[str, list[Piece]]:
    return {
        name: [Piece(one.key, one.at + by_ms, one.amount, one.hops) for one in some]
        for name, some in found.items()
    }


@pytest.mark.one_seed_in(25)  # a history of days takes 0.4 s
@pytest.mark.parametrize("ends", ["nights", "idle", "both"])
def test_a_day_that_comes_after_a_stop_comes_to_what_the_oracle_says(ends: str, seeds: range) -> None:
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            check_days(seed, trace, ends)
