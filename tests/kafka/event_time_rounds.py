"""Event time through a chain of services, each in processes of its own that come and go: see ``meters`` for the services.

    python -m tests.kafka.event_time_rounds --seeds 20 [--seed 0]

A round feeds readings that follow from its seed: in disorder, some of them late, in uneven partitions and one without any. All services
are killed, stopped and joined by other processes; the app ``old`` is replaced by ``new``, which has more partitions, and is retired.
An even seed feeds while the services run, an odd one feeds all at once before ``second`` starts.

Then all outputs are compared with an oracle in plain Python over the records of the sources: which timers fire, with which sums, and which
events are late. It holds for any schedule, since it goes by times alone. With SOAK_MUTATION=NAME the services have a mistake (see
``mutations``), which a round should notice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.tape import decode_cut
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.app_history import AppHistory
from tailrace.log import TopicPartition as Place
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.service import prepare_log
from tests.kafka import meters
from tests.kafka.broker.cluster import Cluster
from tests.kafka.commands import tailrace
from tests.kafka.members import SESSION, Members, await_tasks, runs
from tests.kafka.meters import (
    DISORDER_MS,
    METERS,
    MINUTE_MS,
    PAUSE_MS,
    SPAN_MS,
    Minute,
    Pause,
    Reading,
    Region,
)
from tests.kafka.outside import Feeder, messages
from tests.kafka.soak import BROKER_SETTINGS
from tests.soak.processes import Process, wait_until

T = TypeVar("T", bound=msgspec.Struct)
SERVICES = {name: getattr(meters, name).plan() for name in ("second", "first", "old", "new", "third")}
"""In the order in which their topics are created: ``middle`` gets the partitions of its reader."""
SOURCES = {"readings": 4, "old-readings": 2, "new-readings": 5}
EMPTY = 3
"""The partition of ``readings`` that has none."""
KEYS = [f"k{number}" for number in range(METERS)]
OUTPUTS: dict[str, type[msgspec.Struct]] = {"minutes": Minute, "pauses": Pause, "regions": Region}
START_MS = 1_700_000_000_000
STEP_MS = 1_000
_SOME_MS = 20_000
"""How far readings are out of order that are not late. It is less than DISORDER_MS, as brokers mix partitions."""
_LATE = 0.02
_SIDE = 0.25
"""How many are not of ``readings``."""
_HISTORY = 4_000
_PER_SECOND = 150
_SLOW_MS = 4


# --- the source


def readings(seed: int) -> Iterator[tuple[bool, Reading]]:
    """All readings in the order of their arrival, without end, each with whether it is of ``readings``."""
    random = Random(seed)
    main = [key for key in KEYS if partition_of(key.encode(), SOURCES["readings"]) != EMPTY]
    number = 0
    while True:
        number += 1
        is_main = random.random() >= _SIDE
        few = min(random.randrange(len(main)), random.randrange(len(main)))
        key = main[few] if is_main else random.choice(KEYS)
        back = random.randrange(_SOME_MS)
        if random.random() < _LATE:
            back = DISORDER_MS + random.randrange(SPAN_MS)
        yield is_main, Reading(key, START_MS + number * STEP_MS - back, number)


def readings_of_all(at: int, *topics: str) -> Iterator[Output]:
    """A reading in each partition that is to have any."""
    for topic in topics:
        keys = {partition_of(key.encode(), SOURCES[topic]): key for key in KEYS}
        for partition, key in sorted(keys.items()):
            if (topic, partition) != ("readings", EMPTY):
                yield _record(topic, Reading(key, at, 0))


def _record(topic: str, one: Reading) -> Output:
    return Output(topic, one.key.encode(), msgspec.json.encode(one), one.at)


# --- the oracle


class Expected(NamedTuple):
    """What the services have to write, by what the sources have."""

    minutes: Counter[Minute]
    pauses: Counter[Pause]
    regions: Counter[Region]
    late: Counter[Reading]


def expected(sources: Sequence[Sequence[Sequence[Reading]]], ended: int) -> Expected:
    """``sources`` are topics of partitions. The one with the number ``ended`` was retired, and holds nobody back."""
    timely: list[Reading] = []
    late: Counter[Reading] = Counter()
    reached: list[int] = []
    for number, topic in enumerate(sources):
        for partition in filter(None, topic):
            watermark = min(one.at for one in partition) - DISORDER_MS - 1
            for one in partition:
                if one.at <= watermark:
                    late[one] += 1
                else:
                    timely.append(one)
                watermark = max(watermark, one.at - DISORDER_MS - 1)
            if number != ended:
                reached.append(watermark)
    until = min(reached)
    numbers: dict[tuple[str, int], list[int]] = {}
    times: dict[str, set[int]] = {}
    for one in timely:
        key = f"o{(int(one.key[1:]) * 5 + 3) % METERS}"
        numbers.setdefault((key, one.at // MINUTE_MS), []).append(one.number)
        times.setdefault(key, set()).add(one.at)
    minutes = [
        Minute(key, (minute + 1) * MINUTE_MS - 1, len(some), sum(some))
        for (key, minute), some in numbers.items()
        if (minute + 1) * MINUTE_MS - 1 <= until
    ]
    pauses = [
        Pause(key, at)
        for key, some in times.items()
        for at in some
        if at + PAUSE_MS <= until and not any(at < other <= at + PAUSE_MS for other in some)
    ]
    spans: dict[tuple[str, int], list[Minute]] = {}
    for each in minutes:
        spans.setdefault((f"r{int(each.key[1:]) % meters.REGIONS}", each.end // SPAN_MS), []).append(each)
    regions = [
        Region(
            key, (span + 1) * SPAN_MS - 1, len(some), sum(m.count for m in some), sum(m.total for m in some)
        )
        for (key, span), some in spans.items()
        if (span + 1) * SPAN_MS - 1 <= until
    ]
    return Expected(Counter(minutes), Counter(pauses), Counter(regions), late)


# --- the services


class Round:
    """A round; ``run`` is all of it. ``said`` gets a line for each thing that is done."""

    def __init__(
        self, url: str, folder: Path, seed: int, said: Callable[[str], Any] = lambda _: None
    ) -> None:
        self.random = Random(f"strikes {seed}")
        self.is_live = seed % 2 == 0
        self.is_long = seed > 1
        self.folder = folder
        self.url, self.said = url, said
        self.bootstrap, _, self.prefix = url.removeprefix("kafka://").partition("/")
        self.side = "old-readings"
        """The topic of readings that are not of ``readings``."""
        coming = (_record("readings" if is_main else self.side, one) for is_main, one in readings(seed))
        self.feeder = Feeder(self.bootstrap, self.prefix, coming, _PER_SECOND)
        slow = {} if self.is_live else {"METERS_SLOW_MS": str(_SLOW_MS)}
        protocol = {"TAILRACE_KAFKA_CONSUMER_GROUP_PROTOCOL": "consumer"}
        group = protocol if self.is_long and seed % 3 == 2 else SESSION
        self.members = Members(url, folder, {**group, **slow})
        self.log = KafkaLog(url)
        self.running: dict[str, list[Process]] = {name: [] for name in SERVICES}
        self.all: list[Process] = []

    def run(self) -> Expected:
        """Do it all. Returns what there was."""
        with closing(self.log), closing(self.members), closing(self.feeder):
            for plan in SERVICES.values():
                prepare_log(self.log, plan, create_declared=True)
            self._begin()
            strikes = [self._kill, self._leave, self._replace]
            strikes += [self._join, self._freeze] if self.is_long else []
            self.random.shuffle(strikes)
            for strike in strikes:
                self.said(f"{strike.__name__} at {self.feeder.fed}")
                strike()
            return self._end()

    def _begin(self) -> None:
        # A writer counts from its first commit on, so both have to commit before one is ahead of the other.
        self.feeder.write(readings_of_all(START_MS, "readings", "old-readings"))
        for name in ("first", "old", "third"):
            self._start(name)
        self._await_known("first", "old")
        if self.is_live:
            self.feeder.start()
        else:
            self.feeder.some(_HISTORY // 2)
            self.side = "new-readings"
            self.feeder.some(_HISTORY // 2)
            self._feed_last()
        self._start("second")
        self._start("second")

    def _feed_last(self) -> None:
        """Bring each partition past all timers, but for those of the app that is retired."""
        at = START_MS + self.feeder.fed * STEP_MS + 10 * SPAN_MS
        self.feeder.write(readings_of_all(at, "readings", "new-readings"))

    def _start(self, name: str) -> Process:
        by = "tests.kafka.launched" if "SOAK_MUTATION" in os.environ else "tailrace"
        process = self.members.start(f"tests.kafka.meters:{name}", f"{name}-{len(self.all)}", by=(by,))
        self.running[name].append(process)
        self.all.append(process)
        return process

    def _await_known(self, *names: str) -> None:
        def known() -> bool:
            self._check_that_they_run()
            apps = {by.rpartition("-")[0] for topic, by in self.log.publications() if topic == "middle"}
            return {f"meters-{name}" for name in names} <= apps

        wait_until(known, f"{names} have published")

    def _check_that_they_run(self) -> None:
        for some in self.running.values():
            for one in some:
                assert one.code() is None, one.text()[-3_000:]

    # --- what happens to them

    def _kill(self) -> None:
        """A process of each of two services, at the same moment. Another one takes the tasks over."""
        await_tasks(self.running["second"][0], 1)
        await_tasks(self.running["second"][1], 1)
        await_tasks(self.running["third"][0], 3)
        gone = [self.running["second"].pop(self.random.randrange(2)), self.running["third"].pop()]
        before = self._begun("second")
        for one in gone:
            one.kill()
        await_tasks(self._start("third"), 3)
        wait_until(lambda: self._begun("second") > before, "others have the tasks of the one that was killed")
        self._start("second")

    def _freeze(self) -> None:
        """A process of ``second`` is stopped for longer than its session, and continues when others have its tasks."""
        frozen, other = self.running["second"][:2]
        for one in (frozen, other):
            await_tasks(one, 1)
        before, others = len(runs(frozen)), self._begun("second") - len(runs(frozen))
        frozen.signal(signal.SIGSTOP)
        wait_until(
            lambda: self._begun("second") - len(runs(frozen)) > others,
            "others have the tasks of the one that is stopped",
        )
        frozen.signal(signal.SIGCONT)
        await_tasks(frozen, before + 1)

    def _begun(self, name: str) -> int:
        """The number of tasks that the processes of a service have begun to run."""
        return sum(len(runs(one)) for one in self.running[name])

    def _join(self) -> None:
        """Another process of ``second`` and one of ``first`` get tasks."""
        joined = [self._start("first"), self._start("second")]
        for one in joined:
            await_tasks(one, 1)

    def _leave(self) -> None:
        """The first process of ``first`` leaves. If it is the only one, another comes."""
        if len(self.running["first"]) == 1:
            await_tasks(self._start("first"), 1)
        gone = self.running["first"].pop(0)
        stays = self.running["first"][0]
        before = len(runs(stays))
        self._stop([gone])
        await_tasks(stays, before + 1)

    def _replace(self) -> None:
        """``new`` comes, and gets the readings that ``old`` got. ``old`` reads its rest, leaves and is retired."""
        await_tasks(self._start("new"), SOURCES["new-readings"])
        if self.is_live:
            self.side = "new-readings"
        self._await_known("new")
        places = [Place("old-readings", number) for number in range(SOURCES["old-readings"])]

        def read_all() -> bool:
            self._check_that_they_run()
            ends = {one: self.log.end_offset(*one) for one in places}
            return self.log.committed_offsets("meters-old", places) == ends

        fed = self.feeder.fed
        wait_until(lambda: not self.is_live or self.feeder.fed > fed + 100, "the feeder has turned")
        wait_until(read_all, "old has read all")
        self._stop(self.running["old"])
        self.running["old"] = []
        tailrace("retire", "meters-old", "--log", self.url)

    def _stop(self, some: list[Process]) -> None:
        for one in some:
            one.signal(signal.SIGTERM)
        for one in some:
            # One that has just started may be told so before it can listen.
            assert one.ended() in (0, -signal.SIGTERM), one.text()[-3_000:]

    # --- the end

    def _end(self) -> Expected:
        if self.is_live:
            wait_until(lambda: self._has("regions", 1), "timers fire while readings come")
            self.feeder.stop()
            assert self.feeder.longest_s < 5, "partitions that seem idle may have late events afterwards"
            self._feed_last()
        sources = [self._read(topic, Reading) for topic in SOURCES]
        wanted = expected(sources, ended=1)
        assert not sources[0][EMPTY]
        counts = dict(zip(OUTPUTS, (one.total() for one in wanted), strict=False))
        self.said(f"{self.feeder.fed} readings; waits for {counts}")

        def is_there() -> bool:
            self._check_that_they_run()
            return all(self._has(topic, count) for topic, count in counts.items())

        try:
            wait_until(is_there, "all timers have fired")
        except AssertionError:
            self._compare(wanted)
            raise
        if self.is_long:
            wait_until(self._holds_nobody_back, "no task holds the readers of 'middle' back")
        self._stop([one for some in self.running.values() for one in some])
        self._check(wanted)
        if self.is_long:
            self._check_history(wanted)
        return wanted

    def _holds_nobody_back(self) -> bool:
        """Whether each task that writes ``middle`` runs, and has published a time, or that it is idle.

        One that has no readings counts again after each start, until it was idle for as long as declared. Services that were up
        before have handled everything by then. A rebuild would wait for it, if history ended there.
        """
        self._check_that_they_run()
        for name in ("first", "new"):
            begun = {number for one in self.running[name] for number in runs(one)}
            if len(begun) < SERVICES[name].partitions:
                return False
        marks = [mark for (topic, _), mark in self.log.publications().items() if topic == "middle"]
        return NO_WATERMARK not in marks

    def _has(self, topic: str, count: int) -> bool:
        """Whether there are so many records. Offsets count the markers of transactions as well."""
        offsets = sum(self.log.end_offset(topic, number) for number in range(self.log.partitions(topic)))
        return offsets >= count and len(self._all(topic, OUTPUTS[topic])) >= count

    def _compare(self, wanted: Expected) -> None:
        found: list[Counter[Any]] = [Counter(self._all(topic, kind)) for topic, kind in OUTPUTS.items()]
        found.append(Counter(one for topic in SOURCES for one in self._all(f"late-{topic}", Reading)))
        wants: Sequence[Counter[Any]] = wanted
        for name, have, want in zip(Expected._fields, found, wants, strict=True):
            _assert_same(name, have, want)

    def _check(self, wanted: Expected) -> None:
        self._compare(wanted)
        for topic in ("late-middle", "late-minutes", "late-by-region"):
            assert not self._all(topic, msgspec.Struct), (
                f"{topic} has events that were not late at the source"
            )
        for name, plan in SERVICES.items():
            history = AppHistory(plan, self.log)
            cuts = [history.committed(number).cut for number in range(plan.partitions)]
            found_late = sum(decode_cut(cut or b"").totals.late for cut in cuts)
            assert found_late == 0 or name in ("first", "old", "new"), f"{name} has counted {found_late}"
        for one in self.all:
            assert "behind the watermark" not in one.text(), one.text()[-3_000:]

    def _check_history(self, wanted: Expected) -> None:
        """A replay equals the services byte for byte, and a rebuild by event time alone gives the same outputs again."""
        for name in ("first", "second", "third"):
            self.said(f"history of {name}")
            app, to = f"tests.kafka.meters:{name}", self.folder / f"rebuilt-{name}"
            found = json.loads(
                tailrace(
                    "replay", app, "--log", self.url, "--state", self.folder / "none", "--compare", "--json"
                )
            )
            assert found["differences"] == 0, found
            if name == "first":
                continue
            options = ("--order", "canonical", "--outputs", f"topic:-by-{name}", "--workers", 1)
            tailrace("rebuild", app, "--log", self.url, "--to", to, *options)
        wants: Sequence[Counter[Any]] = wanted
        for (topic, kind), want in zip(OUTPUTS.items(), wants[:3], strict=True):
            name = "third" if topic == "regions" else "second"
            again: Counter[Any] = Counter(self._all(f"{topic}-by-{name}", kind))
            _assert_same(f"{topic}, rebuilt", again, want)
        for topic in ("late-middle-by-second", "late-minutes-by-third", "late-by-region-by-third"):
            assert not self._all(topic, msgspec.Struct), (
                f"{topic} has events that were not late at the source"
            )

    def _read(self, topic: str, kind: type[T]) -> list[list[T]]:
        decode = msgspec.json.Decoder(kind).decode
        found = messages(self.bootstrap, self.prefix + topic)
        return [[decode(one.value() or b"") for one in partition] for partition in found]

    def _all(self, topic: str, kind: type[T]) -> list[T]:
        return [one for partition in self._read(topic, kind) for one in partition]


def _assert_same(name: str, have: Counter[Any], want: Counter[Any]) -> None:
    missing, more = (sorted(some.elements(), key=repr) for some in (want - have, have - want))
    assert not missing, f"{name}: {len(missing)} are missing: {missing[:3]}; and not expected: {more[:3]}"
    assert not more, f"{name}: {len(more)} are not expected: {more[:3]}"


def main() -> None:
    """Rounds of some seeds. The first that fails ends it with its error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-event-time-") as name:
        folder = Path(name)
        (folder / "broker").mkdir()
        with Cluster(folder / "broker", settings=BROKER_SETTINGS) as cluster:
            for seed in range(arguments.seed, arguments.seed + arguments.seeds):
                begun_s = time.monotonic()
                (folder / str(seed)).mkdir()
                url = f"kafka://{cluster.bootstrap}/round-{seed}."
                found = Round(url, folder / str(seed), seed, lambda what: click.echo(f"  {what}")).run()
                click.echo(
                    f"seed {seed}: {[some.total() for some in found]}, {time.monotonic() - begun_s:.0f} s"
                )


if __name__ == "__main__":
    main()
