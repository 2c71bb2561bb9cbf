"""Upgrades under faults: whatever is done to an app in versions, its state and outputs are what the oracle says.

Each seed is a life: events come, services die and are started again, state is lost, failed events are redriven, the code is upgraded, and
history is run again under the newest code, with its state put in place or not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

from tailrace.core.engine.query import QueryReader
from tailrace.core.errors import ReplayDivergedError
from tailrace.history.dead_letters.redriving import close_letters
from tailrace.history.reading.beginnings import base_name
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.snapshots.start_from_snapshot import Start
from tailrace.processes.app_loading import find_app
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Snapshot
from tests.cast.member import KEYS, Event, Said, history, records
from tests.cast.versions import DISORDER_MS, Kept, Version, end_of, is_unlucky, kept_of, versions_of
from tests.cast.world import World
from tests.history.rebuilding.lived import opened, request
from tests.proof.seeds import told

EVENTS = 240


class Life:
    """The service of a seed, and what it has handled, by the version that did."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.random, self.versions = seed, Random(f"life {seed}"), versions_of(seed)
        self.version = self.versions[0]
        self.left = [one for _, one in history(self.random, "sales", disorder_ms=DISORDER_MS, count=EVENTS)]
        self.world = World(find_app(self.app).plan(), seed, (), folder)
        self.handled: list[tuple[Event, Version]] = []
        self.failed: list[Event] = []
        self.letters = 0
        self.before = Counter[Said]()
        """The windows that were closed before the state was replaced."""

    @property
    def app(self) -> str:
        return f"tests.cast.versions:v_{self.seed}_{self.version.number}"

    def work(self, some: list[Event]) -> None:
        """Events come under faults, and all of them are handled, if they can be."""
        self.world.feed(records([("sales", one) for one in some]))
        self.world.live(self.random.randint(0, 4))
        self.rest(some)

    def rest(self, some: list[Event], *, ends: bool = False) -> None:
        self.world.rest(ends=ends)
        for one in some:
            if self.version.faulty and is_unlucky(one):
                self.failed.append(one)
                self.letters += 1
            else:
                self.handled.append((one, self.version))

    def redrive(self) -> None:
        failed, self.failed = self.failed, []
        done = close_letters(self.world.log, "versions", "redriven", lambda _: True, now_ms=1).done
        assert len(done) == len(failed)
        self.rest(failed)

    def upgrade(self) -> None:
        self.version = self.versions[self.version.number + 1]
        self.world.become(find_app(self.app).plan())

    def rebuilt(self, order: str) -> Snapshot:
        """Of a rebuild by the newest code, whose state is what the oracle says."""
        assert self.world.folder is not None
        asked = request(
            self.world.folder,
            self.app,
            order=order,
            on_error="stop" if order == "tape" else "dead-letter",
            store="memory",
        )
        made = opened(asked, rebuild(asked, LocalEngine(1)))
        again = [one for one, _ in self.handled]
        if order == "stages":
            again += [] if self.version.faulty else self.failed
            assert len(set(again)) == len(again)
        rows = {row: value for task in made.manifest.tasks for row, value in made.rows(task.partition)}
        self.compare(rows, kept_of((one, self.version) for one in again))
        return made

    def run_again(self) -> None:
        """History under the newest code: along the tape, if its results are those that are recorded. Then its state may take the
        place of the other.
        """
        self.rebuilt("stages")
        now, said = self.version, {(one.key, one.at) for one in self.closed()}
        others = [(one, by) for one, by in self.handled if by != now]
        shows = any(
            by.sends != now.sends or (by.factor != now.factor and (one.key, end_of(one)) in said)
            for one, by in others
        )
        try:
            made = self.rebuilt("tape")
        except ReplayDivergedError:
            assert any(
                (by.sends, by.factor, by.faulty) != (now.sends, now.factor, now.faulty) for _, by in others
            )
            return
        assert not shows
        if self.random.random() < 0.6:
            self.before = self.closed()
            self.handled = [(one, self.version) for one, _ in self.handled]
            assert self.world.folder is not None
            uri = str(self.world.folder / "snapshots")
            self.world.start = Start(made, base_name(made, uri), replace=True)
            self.rest([])
            self.world.start = None

    def closed(self) -> Counter[Said]:
        found = self.world.outputs(find_app(self.app), ("said",))
        return Counter({one: count for (topic, one), count in found.items() if topic == "said"})

    def check(self) -> None:
        """State, outputs and dead letters are what the oracle says. A window is closed or open, and once."""
        expected = kept_of(self.handled)
        windows = self.compare(self.world.rows(), expected)
        windows.update(self.closed() - self.before)
        gone = {(one.key, one.at) for one in self.before}
        assert windows == {
            Said(key, end, "window", total): 1
            for key, some in expected.windows.items()
            for end, total in some.items()
            if (key, end) not in gone
        }
        assert self.world.outputs(find_app(self.app), ()).total() == self.letters

    def compare(self, rows: dict[bytes, bytes], expected: Kept) -> Counter[Said]:
        """Compare the fields of all keys; the windows that are open are what comes out."""
        store, plan, windows = MemoryStore(), find_app(self.app).plan(), Counter[Said]()
        store.write(dict(rows), b"")
        reader = QueryReader(replace(plan, partitions=1), 0, store)  # the rows of all keys
        classes = {one.name: one.cls for one in plan.actors}
        for key in KEYS:
            shop, board = (reader.instance(classes[name], key) for name in ("Shop", "Board"))
            assert getattr(board, "amount", 0) == expected.board[key]
            assert getattr(shop, "count", 0) == expected.counts[key]
            assert getattr(shop, "sold" if self.version.renamed else "total", 0) == expected.totals[key]
            if self.version.extra:
                assert getattr(shop, "extra", 0) == expected.extras[key]
            for end, total in {} if shop is None else shop.open.items():
                windows[Said(key, end, "window", total)] += 1
        return windows


@pytest.mark.one_seed_in(25)
def test_an_app_in_versions_comes_to_what_the_oracle_says_whatever_is_done_to_it(
    seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        life = Life(seed, tmp_path / str(seed))
        with told(seed, life.world.trace):
            while life.left:
                count = life.random.randint(10, 60)
                some, life.left = life.left[:count], life.left[count:]
                life.work(some)
                life.check()
                chance = life.random.random()
                if chance < 0.2:
                    life.world.lose_state()
                elif chance < 0.4 and life.failed:
                    life.redrive()
                elif chance < 0.8 and life.version != life.versions[-1]:
                    life.upgrade()
                elif chance < 0.95:
                    life.run_again()
                life.rest([])
                life.check()
            life.rest([], ends=True)
            life.check()
        life.world.close()
        rmtree(tmp_path / str(seed))
