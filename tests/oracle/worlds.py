"""Where a case runs: in the memory of a harness, and in a worker on the embedded log. Both are killed and started again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import msgspec

from tailrace.core.engine.query import QueryReader
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.records import InputRecord, Output
from tailrace.log import Log, TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.progress import last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import StateIdentity, StateMemory, open_store
from tailrace.testing import REBALANCE, RELOAD, Harness
from tests.cast.world import drop
from tests.oracle.programs import KEYS, Case, Event, Said, Step, build, shown
from tests.oracle.rules import START_MS, Oracle, Record
from tests.soak import checks

_MOST_TURNS = 2_000


class Killed(BaseException):
    """The process ends here."""


class Result(NamedTuple):
    """What a case has come to."""

    said: list[tuple[str, str, int]]
    routed: list[tuple[str, int, int]]
    letters: list[tuple[str, str, str]]
    state: dict[str, tuple[str, dict[Any, int]]]
    """Values and pending timers of the keys that are stored."""
    counts: dict[str, Any]


def of_oracle(oracle: Oracle) -> Result:
    """What the oracle says."""
    state = {key: (shown(one), one._timers) for key, one in oracle.instances.items()}
    counts: dict[str, Any] = {
        "late": oracle.late,
        "idle": dict(+oracle.late_after_idle),
        "watermark": oracle.reached,
    }
    return Result(oracle.outputs, oracle.routed, sorted(oracle.letters), state, counts)


def follow(oracle: Oracle, step: Step) -> None:
    """Bring a step to the oracle."""
    match step.kind:
        case "send":
            oracle.send(step.records)
        case "wait":
            oracle.wait(step.ms)
        case "idle":
            oracle.fall_idle(step.input)
        case "publish":
            oracle.publish(step.input, step.ms)
        case "restart":
            oracle.restart()
        case _:
            oracle.end()


class World:
    """A case, its app, and chance. ``fuse``: the number of handlers that are still called before it is killed."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.random = case, Random(f"world {seed}")
        self.fuse = -1
        self.app = build(case, self._began)
        self.plan = self.app.plan()
        self.keeper: Any = self.app.actors["Keeper"]
        self.settings = TaskSettings(
            cache_bytes=self.random.choice((0, 3_000, 1 << 28)),
            timers_in_memory=self.random.choice((1, 3, 200_000)),
            firing_budget=self.random.choice((1, 2, 10_000)),
            reload=self.random.random() < 0.3,
            checked=self.random.random() < 0.4,
            scratch=self.random.choice((TemporaryFile, None)),
        )

    def _with_memory(self) -> None:
        """Let it read on in each input: with little memory, one that is ahead is not read further, and their order is another."""
        self.settings = replace(self.settings, cache_bytes=1 << 28)

    def _began(self) -> None:
        self.fuse -= 1
        if self.fuse == 0:
            raise Killed

    def surviving(self, act: Callable[[], object]) -> bool:
        """Do something that may be killed on the way, and then again. Returns whether it was."""
        self.fuse = self.random.randrange(1, 12)
        try:
            act()
        except Killed:
            act()
            return True
        finally:
            self.fuse = -1
        return False

    @staticmethod
    def outputs(records: tuple[Record, ...]) -> list[Output]:
        """Records as a producer writes them."""
        return [
            Output(
                one.input, one.key.encode(), msgspec.json.encode(Event(one.key, one.at, *one[3:])), START_MS
            )
            if one.key is not None
            else Output(one.input, None, b"{", START_MS)
            for one in records
        ]

    def result(self, log: Log, read: Callable[[str], tuple[Any, dict[Any, int]]], counts: Any) -> Result:
        """What is in the log and in the state."""
        said = [(one, msgspec.json.decode(one.value or b"", type=Said)) for one in read_all(log, "said")]
        routed = [(one, msgspec.json.decode(one.value or b"", type=Event)) for one in read_all(log, "lates")]
        letters = [letter(dict(one.headers), one.key) for one in read_all(log, self.plan.dead_letters_topic)]
        state = stored(read)
        return Result(
            [(event.key, event.text, one.timestamp_ms) for one, event in said],
            [(event.key, event.number, one.timestamp_ms) for one, event in routed],
            sorted(letters),
            state,
            counts,
        )


def stored(read: Callable[[str], tuple[Any, dict[Any, int]]]) -> dict[str, tuple[str, dict[Any, int]]]:
    """The state of all keys, by a function that gives instance and timers of one."""
    return {key: (shown(one), timers) for key in KEYS for one, timers in [read(key)] if one is not None}


def read_all(log: Log, topic: str) -> list[InputRecord]:
    """The records of a topic with one partition."""
    place = TopicPartition(topic, 0)
    return list(log.reader({place: 0}).fetch(*place, 1 << 40).records) if log.end_offset(*place) else []


def letter(headers: dict[str, bytes], key: bytes | None) -> tuple[str, str, str]:
    """Of a dead letter: topic and key of the record; or nothing, and key and name of the timer."""
    found = {name: value.decode() for name, value in headers.items()}
    named = (
        found.get("tailrace-key", "")
        if key is None and "tailrace-topic" not in found
        else (key or b"").decode()
    )
    return found.get("tailrace-topic", ""), named, found.get("tailrace-timer", "").partition(" at ")[0]


class InMemory(World):
    """On the memory log, by a harness."""

    def __init__(self, case: Case, seed: int) -> None:
        super().__init__(case, seed)
        if case.actor.ordered and len(case.actor.inputs) > 1:
            self._with_memory()
        self.harness = Harness(
            self.app, now_ms=START_MS, checked=self.settings.checked, reload=self.settings.reload,
            slice_size=self.random.choice((1, 3, 1_000)), commit_every=self.random.choice((None, 1, 2, 5)),
            state="rocksdb" if self.random.random() < 0.05 else "memory", settings=self.settings,
        )  # fmt: skip
        self._settle()

    def _settle(self) -> None:
        self.harness.advance_clock(self.harness.now)

    def do(self, step: Step, oracle: Oracle) -> None:
        """Do a step, after the oracle."""
        h, topics = self.harness, self.app.topics
        match step.kind:
            case "send":
                h.log.append_all(self.outputs(step.records))
                if oracle.idle or not self.surviving(self._settle):
                    self._settle()
                else:
                    oracle.restart()
            case "wait":
                h.advance_clock(h.now + step.ms)
            case "idle":
                h.fall_idle(topics[step.input])
            case "publish":
                h.advance_watermark(step.ms, topic=topics[step.input])
            case "restart":
                how = self.random.randrange(3)
                h.run([(RELOAD, REBALANCE)[how]]) if how < 2 else h.crash()
                self._settle()
            case _:
                h.end_of_input()

    def come_to(self) -> Result:
        """What it has come to. A replay comes to the same."""
        h, keeper = self.harness, self.keeper
        if self.random.random() < 0.25:
            h.replay()
        counts = {
            "late": h.late,
            "idle": {name: count for name, count in h.late_after_idle.items() if count},
            "watermark": h.watermark(actor=keeper),
        }
        return self.result(h.log, lambda key: (h.state(keeper, key), h.timers(keeper, key)), counts)

    def close(self) -> None:
        """Let go of everything."""
        self.harness.close()


class OnTheLog(World):
    """On the embedded log, by a worker with RocksDB."""

    def __init__(self, case: Case, seed: int, folder: Path) -> None:
        super().__init__(case, seed)
        if case.actor.ordered and not all(one.counts for one in case.actor.inputs):
            self._with_memory()  # what does not count is handled as it arrives
        self.folder, self.now_ms, self._memory = folder, START_MS, StateMemory(8 << 20)
        self.log = EmbeddedLog(folder / "log")
        prepare_log(self.log, self.plan, create_declared=True)
        for one in self.plan.inputs:
            self.log.create_topic(one.name, TopicSettings(1))
        self.worker: Worker | None = None
        self._turn()

    def _open(self, _number: int = 0) -> Any:
        return open_store(
            self.folder / "state" / self.plan.app / "0", StateIdentity(self.plan.app, 0), self._memory
        )

    def _turn(self) -> Worker:
        """Take turns until nothing is left to do."""
        worker = self.worker
        if worker is None:
            every = self.random.choice((1, 2, 5, 500_000))
            partition = PartitionSettings(
                commit_interval_ms=1 << 40, commit_records=every, bounded=True, task=self.settings
            )
            settings = WorkerSettings(
                slice_records=self.random.choice((1, 3, 10_000)), bounded=True, partition=partition
            )
            worker = self.worker = Worker(
                self.plan, self.log, range(1), self._open, settings=settings, clock=lambda: self.now_ms
            )
            worker.start()
        for _ in range(_MOST_TURNS):
            worker.turn()
            if worker.quiet:
                worker.turn()  # an input that waited for others in the last one finds that it has nothing to read
                return worker
        raise AssertionError("it never comes to rest")

    def do(self, step: Step, oracle: Oracle) -> None:
        """Do a step, after the oracle."""
        match step.kind:
            case "send":
                self.log.append_all(self.outputs(step.records))
                if not oracle.idle and self.surviving(self._or_die):
                    oracle.restart()
                else:
                    self._turn()
            case "restart":
                oracle.idle.clear()
                self._stop(dies=self.random.random() < 0.5)
                if self.random.random() < 0.3:
                    shutil.rmtree(self.folder / "state", ignore_errors=True)
                self._turn()
            case "wait":
                self.now_ms += step.ms
                self._turn()
            case _:
                worker = self._turn()
                while worker.phase < last_phase(self.plan):
                    worker.advance()
                    self._turn()

    def _or_die(self) -> None:
        try:
            self._turn()
        except Killed:
            self._stop(dies=True)
            raise

    def _stop(self, *, dies: bool) -> None:
        if self.worker is not None and not dies:
            self.worker.leave()
        drop(self.worker)
        self.worker = None

    def come_to(self) -> Result:
        """What it has come to."""
        worker = self._turn()
        (slot,) = worker.slots
        assert slot.running is not None
        task = slot.running.task
        idleness = {name: one.late for name, one in task.watermarks.idleness.items() if one.late}
        counts = {"late": task.totals.late, "idle": idleness, "watermark": task.watermark}
        self._stop(dies=False)
        if self.random.random() < 0.5:
            checks.check_replay(self.log, self.plan, self.folder / "state", TaskSettings())
        store = self._open()
        reader = QueryReader(self.plan, 0, store)
        try:
            return self.result(
                self.log,
                lambda key: (reader.instance(self.keeper, key), reader.timers(self.keeper, key)),
                counts,
            )
        finally:
            store.close()

    def close(self) -> None:
        """Let go of everything."""
        self._stop(dies=True)
        self.log.close()
