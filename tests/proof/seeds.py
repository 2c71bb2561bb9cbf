"""What a seed decides: the variant of the app, the records of its inputs, how a task goes about its work."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

import msgspec

from tailrace.core.engine.task import TaskSettings
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tests.proof.apps import Variant, build
from tests.proof.operations import KEYS, Box, Chance, Change, Event, Model
from tests.proof.programs import Programmer

START_MS = 1_000_000

Records = dict[tuple[str, int], list[InputRecord]]
"""The log of the inputs: records by topic and partition."""


@contextmanager
def told(seed: int, trace: list[str]) -> Generator[None, None, None]:
    """Whatever fails in here says which seed it was, and what had been done."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}\n  " + "\n  ".join(trace[-60:]))
        raise


def each(seeds: range, check: Callable[[int, list[str]], object]) -> None:
    """Check every seed; a failure says which it was."""
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            check(seed, trace)


def variant_of(random: Random, *, inputs: int | None = None, messages: bool | None = None) -> Variant:
    count = random.choice((1, 1, 2, 2, 3)) if inputs is None else inputs
    return Variant(
        inputs=count,
        partitions=random.choice((1, 1, 2)),
        late=random.choice(("handle", "handle", "drop", "route")),
        out_of_order=random.choice((0, 500, 4_000)),
        watermark=random.choice(("events", "events", "events", "upstream")),
        on_error=random.choice(("dead-letter-all", "dead-letter-all", "dead-letter-all", "stop")),
        messages=random.random() < 0.6 if messages is None else messages,
        lean=random.random() < 0.4,
        order="event-time" if random.random() < 0.4 and count < 3 else "arrival",
    )


def settings_of(random: Random) -> TaskSettings:
    return TaskSettings(
        cache_bytes=random.choice((0, 3_000, 20_000, 1 << 28)),
        timers_in_memory=random.choice((1, 2, 3, 7, 200_000)),
        firing_budget=random.choice((1, 1, 2, 5, 10_000)),
        reload=random.random() < 0.4,
        checked=random.random() < 0.3,
    )


def slice_of(random: Random) -> int:
    """How many records a run takes: 1 to 10,000, small ones as likely as large ones."""
    return int(10 ** random.uniform(0, 4))


class Feed:
    """Random records for every input of a model, at most ``most`` per input."""

    def __init__(
        self, model: Model, variant: Variant, random: Random, most: int, *, clock: bool = True
    ) -> None:
        self.model = model
        self.variant = variant
        self.random = random
        self.programmer = Programmer(
            random,
            messages=variant.messages,
            # An app that stops at failures would never get past one that is there to stay.
            failures=True,
            flaky=True,
            processing_time=clock,
        )
        if variant.on_error == "stop":
            self.programmer.without("fail", "fail-rich", "fail-odd", "wrong-value")
        self.spread_ms = random.choice((0, 300, 2_000, 8_000))
        self.step_ms = random.choice((0, 50, 700, 3_000))
        self.keys = KEYS[: random.choice((1, 3, len(KEYS)))]
        self.most = most

    def fill(self, log: Records) -> None:
        for topic in self.model.topics:
            time_ms = START_MS + self.random.randint(0, 2_000)
            for _ in range(self.random.randint(1, self.most)):
                time_ms += self.random.randint(0, self.step_ms)
                at = max(0, time_ms - self.random.randint(0, self.spread_ms))
                value, key = self._value(topic, at)
                place = partition_of(key or b"", self.variant.partitions)
                if self.random.random() < 0.01 and self.variant.on_error != "stop":
                    place = self.random.randrange(self.variant.partitions)
                append(log, topic.name, place, key, value, at)

    def _value(self, topic: Any, at: int) -> tuple[bytes | None, bytes | None]:
        """A record's value and key; now and then one that no handler can take."""
        random = self.random
        key = random.choice(self.keys)
        program = self.programmer.program()
        if topic.name == "changes":
            mark = random.choice((None, 0, 1, 2, 6))
            if mark == 6 and self.variant.on_error == "stop":
                mark = None
            event: Any = Change(key, at, program, Box("given", [random.randint(0, 9)]), mark)
        else:
            event = Event(key, at, program)
        if self.variant.on_error != "stop" and random.random() < 0.03:
            bad = random.choice(("bytes", "none", "type", "missing", "negative", "9999", "no time"))
            if bad == "bytes":
                return b"\xff{", topic.encode_key(event)
            if bad == "none":
                return None, topic.encode_key(event)
            if bad in ("type", "missing"):
                encode = msgspec.msgpack.encode if topic.name == "arrivals" else msgspec.json.encode
                return encode({"key": 3, "at": at} if bad == "type" else {"at": at}), topic.encode_key(event)
            when = {"negative": -5, "9999": 253_370_764_800_000, "no time": at}[bad]
            if bad == "no time" and isinstance(event, Change):
                event.at = None
            else:
                event = msgspec.structs.replace(event, at=when)
        return topic.encode(event), topic.encode_key(event)


def append(
    log: Records, topic: str, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: int
) -> None:
    records = log.setdefault((topic, partition), [])
    offset = records[-1].offset + 1 if records else 0
    if len(records) % 7 == 3:
        offset += len(records) % 3  # a marker, an aborted or a compacted record
    records.append(InputRecord(offset, timestamp_ms, key, value))


def pick(records: list[InputRecord], start: int, stop: int) -> list[InputRecord]:
    """The records at offsets from ``start`` up to ``stop``."""
    return [record for record in records if start <= record.offset < stop]


class Shuffled(NamedTuple):
    """An app of a seed, and inputs in any order. ``flaky`` says whether its handlers may fail from now on."""

    model: Model
    inputs: list[Output]
    flaky: Callable[[bool], None]


def shuffled(seed: int, name: str = "inputs") -> Shuffled:
    """The app and the inputs of a seed; seeds of another name give others."""
    random, chance = Random(f"{name} {seed}"), Random(f"chance {seed}")
    variant = variant_of(random)
    if variant.watermark == "upstream":
        variant = variant._replace(watermark="events")
    model = build(variant)
    records: Records = {}
    Feed(model, variant, random, most=random.choice((5, 20))).fill(records)
    inputs = [
        Output(topic, record.key, record.value, record.timestamp_ms)
        for (topic, _), some in records.items()
        for record in some
    ]
    random.shuffle(inputs)

    def flaky(may_fail: bool) -> None:
        Chance.fires = staticmethod(lambda: may_fail and chance.random() < 0.5)

    return Shuffled(model, inputs, flaky)
