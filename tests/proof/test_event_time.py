"""Event time is right at every step of an app: what it comes to is what an oracle says, whatever the schedule."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.progress import last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.topics import prepare_topics
from tailrace.runtime.worker import _enter, _tell
from tailrace.state import MemoryStore
from tailrace.testing import MemoryLog
from tailrace.testing.replaying import replay
from tailrace.testing.simulator import Simulator
from tests.proof.seeds import told
from tests.proof.webs import Piece, Result, Web, oracle, pieces, records, web_of

_NEVER = 1 << 60


class Live:
    """All partitions of an app, polled and committed in any order, killed now and then, and led to their end."""

    def __init__(self, web: Web, random: Random) -> None:
        self.plan: Plan = web.app.plan()
        self.random = random
        self.log = MemoryLog(markers=random.random() < 0.5)
        prepare_topics(self.log, self.plan, create_declared=True)
        self.now = 1_000_000
        self.phase = 0
        self.stores = [MemoryStore() for _ in range(self.plan.partitions)]
        self.crash_odds = random.choice((0, 0, 0.02))
        self.commit_odds = random.choice((0.02, 0.2, 0.9))
        self.budget = random.choice((1, 3, 10_000))
        self.partitions = [self._started(number) for number in range(self.plan.partitions)]

    def _started(self, number: int) -> Partition:
        settings = PartitionSettings(
            commit_interval_ms=_NEVER, task=TaskSettings(firing_budget=self.budget, timers_in_memory=8)
        )
        partition = Partition(
            self.plan,
            number,
            self.log,
            self.stores[number],
            lambda: self.now,
            lineage=b"web",
            settings=settings,
        )
        partition.restore()
        _tell(partition, self.phase)
        return partition

    def step(self) -> bool:
        """Something happens to one of the partitions; whether there was anything to do."""
        random, number = self.random, self.random.randrange(self.plan.partitions)
        if random.random() < self.crash_odds:
            self.stores[number] = MemoryStore()  # and its partition is forgotten as it is
            self.partitions[number] = self._started(number)
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
                _enter(one, self.phase)
            self.settle()

    def results(self) -> Counter[Result]:
        decode = msgspec.json.Decoder(Result).decode
        return Counter(decode(record.value or b"") for record in self.log.read("results"))

    def late(self) -> int:
        return sum(one.task.totals.late for one in self.partitions)

    def behind(self) -> int:
        return sum(sum(one.behind.values()) for one in self.partitions)


def lived(web: Web, random: Random, found: dict[str, list[Piece]]) -> Live:
    """A run that is fed in pieces, now one source ahead and now another, and then ends."""
    live = Live(web, random)
    waiting = {name: list(records(web, {name: some})) for name, some in found.items()}
    if random.random() < 0.5:  # all of it is there before the start
        for some in waiting.values():
            live.log.append_all(some)
        waiting.clear()
    while any(waiting.values()):
        name = random.choice([name for name, some in waiting.items() if some])
        count = random.choice((1, 4, 30))
        live.log.append_all(waiting[name][:count])
        del waiting[name][:count]
        for _ in range(random.choice((0, 2, 15))):
            live.step()
    live.settle()
    live.end()
    return live


def check_right(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    web = web_of(random)
    trace += [str(node) for node in web.nodes]
    found = pieces(web, random)
    wanted = oracle(web, found)
    live = lived(web, random, found)
    came = live.results()
    assert came == wanted, (
        f"missing {list((wanted - came).items())[:5]}, wrong {list((came - wanted).items())[:5]}"
    )
    assert live.late() == 0, "something was late, and nothing came late from outside"
    assert live.behind() == 0, "something was emitted behind what had been published"
    for one in live.partitions:
        one.revoke()
    report = replay(live.plan, live.log, live.stores, TaskSettings())
    assert not report.differences.count


def test_every_result_of_an_app_of_several_steps_is_that_of_the_oracle(seeds: range) -> None:
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            check_right(seed, trace)


def check_circles(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    web = web_of(random, circles=True)
    trace += [str(node) for node in web.nodes]
    inputs = list(records(web, pieces(web, random, 20)))
    random.shuffle(inputs)
    Simulator(web.app.plan(), seed, inputs, steps=40).run()


def test_apps_with_circles_come_to_the_same_bytes_again_under_kills(seeds: range) -> None:
    for seed in range(seeds.start, seeds.start + max(1, len(seeds) // 5)):
        trace: list[str] = []
        with told(seed, trace):
            check_circles(seed, trace)
