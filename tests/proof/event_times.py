"""Random apps of several steps that live through kills, beside an oracle of event time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import TaskSettings
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.progress import last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore
from tailrace.testing import Harness, MemoryLog
from tailrace.testing.replaying import replay as replay_all
from tests.cast.webs import Piece, Result, Web, oracle, pieces, records, web_of

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
        self.passing_ms = 0
        """How far the clock moves from one step to the next, in milliseconds."""
        self.stores = [MemoryStore() for _ in range(self.plan.partitions)]
        self.crash_odds = random.choice((0, 0, 0.02))
        self.commit_odds = random.choice((0.02, 0.2, 0.9))
        self.budget = random.choice((1, 3, 10_000))
        self.partitions = [self._started(number) for number in range(self.plan.partitions)]

    def _started(self, number: int) -> Partition:
        settings = PartitionSettings(
            commit_interval_ms=_NEVER,
            after_end=True,
            task=TaskSettings(firing_budget=self.budget, timers_in_memory=8),
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
        if self.phase:
            partition.end_input(self.phase)
        return partition

    def step(self) -> bool:
        """Something happens to one of the partitions; whether there was anything to do."""
        random, number = self.random, self.random.randrange(self.plan.partitions)
        self.now += self.passing_ms
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
                one.end_input(self.phase)
            self.settle()

    def results(self) -> Counter[Result]:
        decode = msgspec.json.Decoder(Result).decode
        return Counter(decode(record.value or b"") for record in self.log.read("results"))

    def late(self) -> int:
        return sum(one.task.totals.late for one in self.partitions)

    def behind(self) -> int:
        return sum(sum(one.promises.behind.values()) for one in self.partitions)


def lived(web: Web, random: Random, found: dict[str, list[Piece]]) -> Live:
    """A run that is fed in pieces, now one source ahead and now another, and then ends."""
    live = Live(web, random)
    waiting = {name: list(records(web, {name: some})) for name, some in found.items()}
    live.passing_ms = random.choice((0, 5_000, 40_000))
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
    report = replay_all(live.plan, live.log, live.stores, TaskSettings())
    assert not report.differences.count


def alone(web: Web, names: set[str], found: dict[str, list[Piece]]) -> dict[str, list[tuple[object, ...]]]:
    """What actors next to the sources come to: their rows and what they emit, by actor, byte for byte, in their order."""
    made: dict[str, list[tuple[object, ...]]] = {name: [] for name in names}
    with Harness(web.app, slice_size=7) as h:
        h.log.append_all(one for name in sorted(found) for one in records(web, {name: found[name]}))
        h.advance_watermark(30_000)
        h.end_of_input()
        for store in h._service.stores:
            for name in sorted(names):
                prefix = rows.actor_prefix(name)
                made[name] += store.scan(prefix, rows.prefix_end(prefix))
        # By key, as the log keeps no order between partitions.
        emitted = sorted(h.log.read("results"), key=lambda record: record.key or b"")
        for record in emitted:
            who = msgspec.json.decode(record.value or b"", type=Result).who
            if who in names:
                made[who].append((record.key, record.value, record.timestamp_ms))
    return made


def check_apart(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    web, more = (web_of(random) for _ in range(2))
    found = {name: pieces(web, random)[name] for name in web.sources} | {
        name: some for name, some in pieces(more, random).items() if name not in web.sources
    }
    others = [replace(node, name=f"z{node.name}") for node in more.nodes]
    for node in others:  # they have topics, streams and messages of their own
        node.topics = [name if name.startswith("s") else f"z{name}" for name in node.topics]
        node.targets = [f"z{name}" for name in node.targets]
        node.sends = [f"z{name}" for name in node.sends]
        node.stream = None if node.stream is None else f"z{node.stream}"
        node.gives = None if node.gives is None else f"z{node.gives}"
    both = Web([*web.nodes, *others], web.partitions, web.out_of_order, web.repartitioned, circles=False)
    trace += [str(node) for node in both.nodes]
    plan = web.app.plan()
    names = {
        one.name
        for one in plan.operators
        if one.actor is not None and not one.level and not any(plan.inputs[s].own for s in one.sources)
    }
    assert alone(web, names, {name: found[name] for name in web.sources}) == alone(both, names, found)
