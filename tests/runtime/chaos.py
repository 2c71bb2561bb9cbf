"""A service whose workers take turns by chance."""

from __future__ import annotations

import random
from collections.abc import Callable

from tailrace.core.engine import tape
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import CommitUnknownError, FencedError, LogUnavailableError, StateUnavailableError
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state.store_cut import decode_store_cut
from tests.runtime.world import APPS, Kill, World, run_dry

FAULTS: dict[str, Callable[[], BaseException]] = {
    "kill": Kill,
    "unknown": lambda: CommitUnknownError("lost contact"),
    "log away": lambda: LogUnavailableError("away"),
    "disk full": lambda: StateUnavailableError("full"),
}


AT = {
    "kill": ("take-over", "append", "commit", "committed", "fetch", "query", "store", "stored", "abort"),
    "unknown": ("commit", "committed"),
    "log away": ("append", "commit", "fetch", "query", "take-over"),
    "disk full": ("store",),
}


class Chaos:
    """Owners that come, are struck, fenced and followed by others, until everything is read."""

    def __init__(self, seed: int, app: str) -> None:
        self.dice = random.Random(seed)
        self.world = World(APPS[app]())
        self.owner: Partition | None = None
        self.zombies: list[Partition] = []
        self.app = app
        self.struck = 0

    def run(self) -> World:
        for at_ms in range(0, 3_000, 50):
            self.feed(at_ms)
            if self.dice.random() < 0.5:
                self.step()
                self.check()
        self.world.strike = lambda name: None
        owner = self.next_owner()
        for _ in range(3):
            run_dry(owner, 50)
            self.world.now_ms += 5_000
        owner.revoke()
        return self.world

    def feed(self, at_ms: int) -> None:
        dice = self.dice
        shop, amount = f"s{dice.randrange(4)}", dice.randrange(9)
        topic = "returns" if self.app == "two inputs" and dice.random() < 0.3 else "sales"
        self.world.sell((shop, max(0, at_ms - dice.randrange(60)), amount), topic=topic)

    def next_owner(self) -> Partition:
        dice = self.dice
        if dice.random() < 0.3:
            self.world.new_store()
        partition = self.world.assigned(
            settings=PartitionSettings(
                commit_interval_ms=dice.choice((0, 100, 1_000)),
                restore_batch=dice.choice((1, 4, 1_000)),
                merge_tolerance_ms=dice.choice((0, 100, 1_000)),
                task=TaskSettings(
                    firing_budget=dice.choice((1, 2, 1_000)),
                    timers_in_memory=dice.choice((2, 1_000)),
                    cache_bytes=dice.choice((0, 1 << 20)),
                ),
            )
        )
        partition.restore()
        return partition

    def step(self) -> None:
        """Let an owner take some slices, struck or not; some of the struck ones live on as zombies."""
        dice, world = self.dice, self.world
        world.now_ms += dice.choice((0, 1, 70, 900))
        fault = dice.choice((*FAULTS, None))
        if fault is not None:
            self.arm(fault)
        if self.zombies and dice.random() < 0.5:
            self.run_a_zombie()
        try:
            if self.owner is None or self.owner.lifecycle.ended:
                self.owner = self.next_owner()
            for _ in range(dice.randrange(1, 6)):
                self.owner.poll(dice.choice((1, 2, 7, 100)))
            if dice.random() < 0.2:
                self.owner.revoke()
        except Kill:
            self.owner = None
        except (FencedError, LogUnavailableError, StateUnavailableError):
            if self.owner is not None and self.owner.state is State.RUNNING and dice.random() < 0.5:
                self.zombies.append(self.owner)
                self.owner = None
                world.new_store()
        world.strike = lambda name: None

    def arm(self, fault: str) -> None:
        left, name_of_fault = self.dice.randrange(1, 6), self.dice.choice(AT[fault])

        def strike(name: str) -> None:
            nonlocal left
            if name == name_of_fault:
                left -= 1
                if left == 0:
                    self.struck += 1
                    error = FAULTS[fault]()
                    raise error

        self.world.strike = strike

    def run_a_zombie(self) -> None:
        zombie = self.zombies.pop()
        try:
            if zombie.state is State.RUNNING:
                zombie.poll(5)
                zombie.revoke()
        except (Kill, FencedError, LogUnavailableError, StateUnavailableError):
            pass

    def check(self) -> None:
        """The store that the next owner will find is not ahead of the log."""
        if self.world.store.cut is not None:
            held = decode_store_cut(self.world.store.cut)
            tapes = self.world.log.read("shop.tape")
            committed = [tape.decode_tape(one.value or b"").identity for one in tapes]
            assert held.core is None or tape.decode_cut(held.core).identity in committed
