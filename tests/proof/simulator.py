"""Workers under every fault we can think of, from one seed, with the laws checked after every step.

    report = Simulator(app.plan(), seed=7, inputs=[(topic, event), ...]).run()

Theory. One seed gives one run. A run is a list of steps; a step lets a worker do something, with or without a
fault armed at one of the log's or the store's operations, or changes the environment: a clock that jumps, a
producer that sends twice, a store that is lost. The former owner of a partition that was taken over may live
on as a *zombie* and try to continue. After every step the ``Observer`` checks the committed records. At the
end all inputs are read, without faults, and the whole history is replayed from an empty state.

    kill         the process ends before, in or after any operation     the next owner finds what was
                                                                        committed
    unknown      a commit took effect, or not, and nobody says which    the owner looks
    log away     the log does not answer                                the owner ends, or waits
    disk full    the store cannot be written                            the owner ends; the log knows
    zombie       an owner sleeps while another takes over               it is fenced
    rebalance    handed over to a worker with no store, or an old one   restored from the changelog
    lost store   deleted, or without its tail                           restored from the changelog
    duplicate    a producer sends a record twice                        two records
    flaky        what a handler depends on outside fails (``flaky``)    stops or goes to the dead letters,
                                                                        once

The idea is that of Kafka's ``RaftEventSimulationTest``: small pieces, invariants after every event,
validations in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import (
    BadRecordError,
    FencedError,
    HandlerError,
    LogUnavailableError,
    StateUnavailableError,
)
from tailrace.core.names import transactional_id
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state.store_cut import decode_store_cut
from tailrace.testing.exploring.driving import LawBrokenError
from tailrace.testing.memory_log import MemoryLog, MemoryWriter
from tailrace.testing.replaying import ReplayReport, replay
from tests.proof.invariants import CommitObserver
from tests.proof.strikes import STRIKES, Kill, SimulatedStore, Strike, random_settings

LINEAGE = b"simulator"
_WORKERS = 3
_TRACE = 80
_QUIET = 500


@dataclass
class SimulationReport:
    """What a simulation has done."""

    seed: int
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    """Operations of log and store, each of which could be struck."""
    replayed: ReplayReport | None = None


class Owner(NamedTuple):
    """A partition at work, and the worker it is at work on."""

    partition: Partition
    worker: int


class Simulator:
    """One run. See the head of this file.

    ``inputs`` are appended in their order, bit by bit. ``settings`` gives the settings of each new owner.
    ``check`` is called after every step with the observer, for laws of the app itself. ``flaky`` is called
    with whether the outside world may fail now.
    """

    def __init__(
        self,
        plan: Plan,
        seed: int,
        inputs: Sequence[Output],
        *,
        steps: int = 60,
        fault_odds: float = 0.4,
        settings: Callable[[Random], PartitionSettings] | None = None,
        check: Callable[[CommitObserver], None] | None = None,
        flaky: Callable[[bool], None] | None = None,
    ) -> None:
        self.plan = plan
        self.random = Random(seed)
        self.report = SimulationReport(seed)
        self.trace: list[str] = []
        self.armed: Callable[[str], None] | None = None
        self.log = MemoryLog(markers=self.random.random() < 0.7, on_operation=self.on_operation)
        prepare_topics(self.log, plan, create_declared=True)
        self.observer = CommitObserver(plan, self.log)
        self.now_ms = 1_000_000
        self._inputs = list(inputs)
        self._fed = 0
        self._steps = steps
        self._fault_odds = fault_odds
        self._settings = random_settings if settings is None else settings
        self._check = check
        self._flaky = flaky or _never
        self.owners: list[Owner | None] = [None] * plan.partitions
        self._zombies: list[Owner] = []
        self.stores: dict[tuple[int, int], SimulatedStore] = {}
        self._copies: dict[tuple[int, int], SimulatedStore] = {}

    def run(self) -> SimulationReport:
        """Do it all. Raises LawBrokenError, or any other error, with the seed and the trace's end."""
        try:
            for _ in range(self._steps):
                self._step()
                self.look()
            self.settle()
            self.validate()
        except Exception as error:
            error.add_note(f"seed {self.report.seed}\n  " + "\n  ".join(self.trace[-_TRACE:]))
            raise
        return self.report

    # --- what is checked

    def look(self) -> None:
        """Check everything that must hold after every step."""
        strike, self.armed = self.armed, None
        self.observer.look()
        for (_, number), store in self.stores.items():
            self.observer.look_at_store(number, store)
        if self._check is not None:
            self._check(self.observer)
        self.armed = strike
        self.report.steps += 1

    def settle(self) -> None:
        """Without further faults: read everything, until nothing moves any more."""
        self._flaky(False)
        self._feed(len(self._inputs))
        for _ in range(_QUIET):
            moved, commits = False, self.observer.commits
            for number in range(self.plan.partitions):
                owner = self.owned(number)
                while owner.partition.poll(self.random.choice((3, 50, 1_000))):
                    moved = True
                owner.partition.commit()
            self.look()
            self.now_ms += 30_000
            if not moved and self.observer.commits == commits:
                break
        else:
            raise LawBrokenError("it never comes to rest")
        for last in self.owners:
            if last is not None:
                last.partition.revoke()
        self.forget_owners()
        self.look()
        self.observer.look_for_gaps()

    def validate(self) -> None:
        """Replay everything from nothing: state, cuts and outputs must be the same bytes."""
        stores = [self._restored(number) for number in range(self.plan.partitions)]
        self.report.replayed = replay(self.plan, self.log, stores, TaskSettings())

    # --- steps

    def _step(self) -> None:
        random = self.random
        if self._fed < len(self._inputs) and random.random() < 0.6:
            self._feed(random.randint(1, 8))
        chance = random.random()
        number = random.randrange(self.plan.partitions)
        if chance < 0.08:
            self.now_ms += random.choice((-100_000, -5, 3, 1_500, 40_000))
            self._note(f"clock {self.now_ms}")
        elif chance < 0.14:
            self._pause(number)
        elif chance < 0.24 and self._zombies:
            self.wake(self._zombies.pop(random.randrange(len(self._zombies))))
        elif chance < 0.32:
            self._hand_over(number)
        elif chance < 0.37:
            self._lose(number)
        elif chance < 0.41:
            self._disturb_log(number)
        else:
            self._work(number)
        if random.random() < 0.2:
            for place, store in self.stores.items():
                self._copies[place] = store.copy()

    def feed_all(self) -> None:
        """Append all inputs, each once."""
        for output in self._inputs[self._fed :]:
            self._append(output)
        self._fed = len(self._inputs)

    def forget_owners(self) -> None:
        """Every partition is to have a new owner."""
        self.owners = [None] * self.plan.partitions

    def state(self) -> list[dict[bytes, bytes]]:
        """The rows of every task, as a new store gets them from the changelog."""
        return [_state(self._restored(number)) for number in range(self.plan.partitions)]

    def _feed(self, count: int) -> None:
        for output in self._inputs[self._fed : self._fed + count]:
            self._append(output)
            if self.random.random() < 0.05:
                self._count("duplicate")
                self._append(output)
        self._fed = min(len(self._inputs), self._fed + count)

    def _append(self, output: Output) -> None:
        topic, key, value, timestamp_ms, headers = output
        strike, self.armed = self.armed, None
        self.log.append(topic, key, value, timestamp_ms, headers)
        self.armed = strike

    def _work(self, number: int) -> None:
        """Let the owner take slices and commit, struck or not."""
        random = self.random
        if random.random() < self._fault_odds:
            self._arm(random.choice(STRIKES))
        self._flaky(random.random() < 0.3)
        owner, held = None, False
        try:
            owner = self.owned(number)
            held = self._holds(owner)
            for _ in range(random.randint(1, 5)):
                self._note(f"task {number} at worker {owner.worker} polls")
                owner.partition.poll(random.choice((1, 2, 7, 100, 10_000)))
            if random.random() < 0.4 and owner.partition.state is State.RUNNING:
                owner.partition.commit()
        except Kill:
            self._note("killed")
            self.owners[number] = None
        except (LogUnavailableError, StateUnavailableError, HandlerError, BadRecordError) as error:
            self._note(f"{type(error).__name__}: {error}")
            if owner is None or owner.partition.lifecycle.ended:
                self.owners[number] = None
        except FencedError:
            self.owners[number] = None
            if held:
                raise
        finally:
            self.armed = None
            self._flaky(False)

    def _pause(self, number: int) -> None:
        """The owner sleeps, and someone else will take over."""
        owner = self.owners[number]
        if owner is not None:
            self._note(f"task {number} at worker {owner.worker} sleeps")
            self._zombies.append(owner)
            self.owners[number] = None

    def wake(self, zombie: Owner) -> None:
        """Wake a zombie: if another has taken over since, nothing that it does may become visible."""
        number, commits = zombie.partition.partition, self.observer.commits
        replaced = not self._holds(zombie)
        self._count("zombie")
        self._note(
            f"task {number} wakes at worker {zombie.worker}, {'replaced' if replaced else 'not replaced'}"
        )
        fenced = False
        try:
            if zombie.partition.state is State.IN_DOUBT:
                zombie.partition.close()  # only its worker may decide to take the task over again
            elif zombie.partition.state is State.RUNNING:
                zombie.partition.poll(5)
                zombie.partition.revoke()
        except FencedError:
            fenced = True
        except (HandlerError, BadRecordError):
            pass
        self.observer.look()
        if fenced and not replaced:
            raise LawBrokenError(f"task {number} was fenced, but nobody has taken it over")
        if replaced and self.observer.commits != commits:
            raise LawBrokenError(f"a zombie of task {number} has committed")

    def _hand_over(self, number: int) -> None:
        """The owner commits and gives the partition back. The next owner is another worker or the same."""
        owner = self.owners[number]
        if owner is None:
            return
        self._count("rebalance")
        self._note(f"task {number} is handed over by worker {owner.worker}")
        self.owners[number] = None
        held = self._holds(owner)
        if self.random.random() < self._fault_odds:
            self._arm(self.random.choice(STRIKES))
        try:
            owner.partition.revoke()
        except (Kill, LogUnavailableError, StateUnavailableError) as error:
            self._note(type(error).__name__)
        except FencedError:
            if held:
                raise
        finally:
            self.armed = None

    def _lose(self, number: int) -> None:
        """A store without an owner is deleted, or loses its tail."""
        if self.owners[number] is not None or any(z.partition.partition == number for z in self._zombies):
            return
        for place in [place for place in self.stores if place[1] == number]:
            copy = self._copies.get(place)
            self._count("lost store")
            if copy is None or self.random.random() < 0.3:
                del self.stores[place]
            else:
                self.stores[place] = copy.copy()
            self._note(f"store {place} is lost{'' if copy is None else ' in part'}")

    def _disturb_log(self, number: int) -> None:
        """What a log does by itself: compaction, expired transactions, a restart."""
        kind = self.random.choice(("compaction", "expired transaction", "log restart"))
        self._count(kind)
        self._note(kind)
        if kind == "compaction":
            self.log.compact(self.plan.changelog_topic, drop_deletions=False)
        elif kind == "expired transaction":
            self.log.expire(transactional_id(self.plan.app, number))
        else:
            self.log.crash()

    # --- owners and stores

    def owned(self, number: int) -> Owner:
        """The owner of a partition; a new one, on any worker, if it has none."""
        owner = self.owners[number]
        if owner is not None and not owner.partition.lifecycle.ended:
            if self._holds(owner):
                return owner
            owner.partition.close()
        random = self.random
        worker = random.randrange(_WORKERS)
        place = (worker, number)
        if any(z.worker == worker and z.partition.partition == number for z in self._zombies):
            self.stores.pop(place, None)  # one process has one owner of a folder: this one is another machine
        store = self.stores.get(place)
        if store is None:
            store = self.stores[place] = SimulatedStore(self.on_operation)
        partition = Partition(
            self.plan,
            number,
            self.log,
            store,
            lambda: self.now_ms,
            lineage=LINEAGE,
            draw_nonce=lambda: LINEAGE,
            settings=self._settings(random),
        )
        self._note(f"task {number} is assigned to worker {worker}")
        partition.restore()
        owner = self.owners[number] = Owner(partition, worker)
        return owner

    def _holds(self, owner: Owner) -> bool:
        """Whether nobody has taken the task over since. One in doubt holds nothing."""
        writer = owner.partition._writer
        return isinstance(writer, MemoryWriter) and self.log.is_holder(writer)

    def _restored(self, number: int) -> SimulatedStore:
        """A store filled from the changelog alone. Stores at the same cut must hold the same rows."""
        store = SimulatedStore(_never)
        partition = Partition(self.plan, number, self.log, store, lambda: self.now_ms, lineage=LINEAGE)
        partition.restore()
        partition.close()
        for (worker, of), other in self.stores.items():
            if of == number and other.cut is not None and _core(other) == _core(store):
                self.observer.look_at_store(number, other)
                if _state(other) != _state(store):
                    raise LawBrokenError(
                        f"the store of task {number} at worker {worker} is not what was committed"
                    )
        return store

    # --- faults

    def _arm(self, strike: Strike) -> None:
        """Have a fault strike at one of the next operations it can strike at."""
        left = self.random.randint(1, 12 if strike.at is None else 4)

        def struck(name: str) -> None:
            nonlocal left
            if strike.at is None or name in strike.at:
                left -= 1
                if left == 0:
                    self._count(strike.name)
                    self._note(f"{strike.name} at {name}")
                    raise strike.error()

        self.armed = struck

    def on_operation(self, name: str) -> None:
        """What every operation of log and stores passes; here faults strike."""
        self.report.operations += 1
        if self.armed is not None:
            self.armed(name)

    def _count(self, fault: str) -> None:
        self.report.faults[fault] += 1

    def _note(self, what: str) -> None:
        self.trace.append(what)


def _never(_: object) -> None:
    """A hook that does nothing."""


def _core(store: SimulatedStore) -> bytes | None:
    return None if store.cut is None else decode_store_cut(store.cut).core


def _state(store: SimulatedStore) -> dict[bytes, bytes]:
    return {row: value for row, value in store.rows() if not rows.is_local(row)}
