"""Records as a hostile producer may write them, what a service must do with each, and whether a service did.

The oracle is by construction: who makes a record knows whether it is good, and if not for which reason it becomes a dead letter. A
good one adds its ``n`` to the total of its key, in plain Python.
"""

from __future__ import annotations

import io
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import Annotated, Any, NamedTuple

import fastavro
import msgspec

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.redriven import Redriven, redriven_header
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.records import MAX_RECORD_BYTES, UNREADABLE, Headers, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.dead_letters.letters import dead_letters
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.log.interface import OneCommitLog, TopicPartition
from tailrace.registry import Registry
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.runtime.processes import PATIENCE_S

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000
PARTITIONS = 2
FORMATS = ("json", "packed", "avro")
FAILED = "handler-failed"


class Tree(msgspec.Struct, frozen=True):
    inner: Tree | None = None


class Event(msgspec.Struct, frozen=True):
    who: str
    at: int
    n: int = 0
    real: float = 0.0
    text: str = ""
    do: str = ""
    tree: Tree | None = None


class Total(msgspec.Struct, frozen=True):
    who: str
    by: str
    count: int
    total: int


class Told(msgspec.Struct, frozen=True):
    n: int


def make_app() -> tr.App:
    """Three topics of the same events, and an actor for each."""
    app = tr.App("hostile", partitions=PARTITIONS, on_error="dead-letter")
    formats: dict[str, Any] = {"json": "json", "packed": "msgpack", "avro": Registry("mock://").avro}
    totals = app.topic("totals", Total, key="who", event_time=tr.RECORD_TIME)
    told = app.topic("told", Told, key="n", format="msgpack", event_time=tr.RECORD_TIME)
    for name in FORMATS:
        topic = app.topic(name, Event, key="who", event_time="at", format=formats[name])
        app.actor(name=name)(_keeper(topic, totals, told))
    return app


def _keeper(topic: Any, totals: Any, told: Any) -> Any:
    class Keeper(tr.Actor):
        count: int = 0
        total: int = 0
        text: str = ""
        last: Event | None = None
        credit: Annotated[int, msgspec.Meta(ge=0)] = 0
        by_number: tr.MapState[int, int]
        items: tr.ListState[list[int]]

        @tr.process(topic)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += 1
            self.total += event.n
            self.last = event
            match event.do:
                case "fail":
                    raise ValueError(event.text)
                case "map key":
                    self.by_number[event.n] = 1
                case "item":
                    self.items.append([event.n])
                case "credit":
                    self.credit = event.n
                case "timer":
                    ctx.set_timer(event.n)
                case "payload":
                    ctx.set_timer(event.at + 1, "paid", payload=Told(event.n))
                case "emit":
                    ctx.emit(told, Told(event.n))
                case "emit too much":
                    ctx.emit(totals, Total(event.who, "x" * MAX_RECORD_BYTES, 0, 0))
                case "keep too much":
                    self.text = "x" * (32 << 20)
                case _:
                    pass
            ctx.emit(totals, Total(event.who, topic.name, self.count, self.total))

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer("paid", payload=Told)
        def paid(self, told: Told, ctx: tr.Context[str]) -> None: ...

    return Keeper


class Made(NamedTuple):
    """A record, and the reasons for which it may become a letter; none: it is good."""

    output: Output
    partition: int
    event: Event | None
    reasons: frozenset[str]


_UNDECODABLE, _WRONG = frozenset(("undecodable",)), frozenset(("wrong-type",))
_EITHER = _UNDECODABLE | _WRONG
_HUGE = (2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30, -(10**400), 2**61)
_DO = ("", "", "", "map key", "item", "credit", "timer", "payload", "emit", "emit too much", "fail")


class Maker:
    """Makes records from a seed. ``largest``: how large their texts may be."""

    def __init__(self, random: Random, largest: int, encoders: dict[str, Callable[[Any], bytes]]) -> None:
        self.random, self.largest, self._encoders = random, largest, encoders
        self._keys = ["", "\0", "é" * 50, "k" * 5_000, *map(str, range(20))]

    def record(self, format: str) -> Made:
        """One record for a topic."""
        random = self.random
        event = self._event(format)
        reasons: frozenset[str] = self._reasons(event)
        written = self._encode(format, event)
        value: bytes | None = written
        headers, of_headers = self._headers()
        key, partition = event.who.encode(), partition_of(event.who.encode(), PARTITIONS)
        kind = random.random()
        if kind < 0.3:
            value, reasons = self._broken(format, written)
        elif kind < 0.34 and not reasons:
            partition, reasons = 1 - partition, frozenset(("foreign-partition",))
        elif kind < 0.38:
            key = random.choice((b"", b"\xff", bytes(100)))  # the event has the key
        reasons = reasons if of_headers is None or not (reasons or of_headers) else of_headers or reasons
        time_ms = random.choice((NOW_MS, 0, NOW_MS + 10**9))
        return Made(Output(format, key, value, time_ms, headers), partition, event, reasons)

    def _event(self, format: str) -> Event:
        random = self.random
        at = NOW_MS - random.randrange(DAY_MS)
        if random.random() < 0.2:
            at = random.choice(
                (-1, NOW_MS // 1_000, NOW_MS + DAY_MS + 1, NOW_MS + DAY_MS, 10**15, 2**62, 10**12)
            )
        n = random.randrange(-50, 100)
        if random.random() < 0.2:
            n = random.choice(_HUGE)
        if format == "packed":
            n = max(-(2**63), min(n, 2**64 - 1))
        elif format == "avro":
            n = max(-(2**63), min(n, 2**63 - 1))
        do = random.choice(_DO) if random.random() < 0.995 else "keep too much"
        if do == "timer":
            n = random.choice((at + 1_000 if 10**12 < at < 10**14 else NOW_MS, 2**61, NOW_MS // 1_000))
        size = random.choice((0, 5, 100)) if random.random() < 0.99 else random.randrange(self.largest)
        text = "".join(random.choices('aé"\\\n\x01😀', k=size)) if size < 1_000 else "x" * size
        tree = None
        for _ in range(random.choice((0, 0, 1, 40))):
            tree = Tree(tree)
        real = random.choice(
            (0.0, -0.0, 1e308, 5e-324) if format == "json" else (float("nan"), float("-inf"), 1.5)
        )
        return Event(random.choice(self._keys), at, n, real, text, do, tree)

    def _reasons(self, event: Event) -> frozenset[str]:
        """Why the event cannot be handled, whatever happened to its key before."""
        if not 0 <= event.at < 7_258_118_400_000 or event.at == NOW_MS // 1_000:
            return frozenset(("bad-time",))
        if event.at > NOW_MS + DAY_MS:
            return frozenset(("from-the-future",))
        n, do = event.n, event.do
        signed, any_sign = -(2**63) <= n < 2**63, -(2**63) <= n < 2**64
        fails = (
            do in ("fail", "emit too much", "keep too much")
            or not any_sign
            or (do in ("map key", "emit") and not signed)
            or (do == "credit" and n < 0)
        )
        fails = fails or (do == "timer" and (abs(n) >= 2**61 or n == NOW_MS // 1_000))
        return frozenset((FAILED,)) if fails else frozenset()

    def _encode(self, format: str, event: Event) -> bytes:
        if format != "json":
            return self._encoders[format](event)
        # msgspec does not write ints of any size; the order and other fields are any.
        texts = {
            "who": _json(event.who), "at": str(event.at), "n": str(event.n), "real": repr(event.real), "text": _json(event.text),
            "do": _json(event.do), "tree": msgspec.json.encode(event.tree).decode(), "other": "[{}, [1e5, null]]",
        }  # fmt: skip
        names = self.random.sample(list(texts), len(texts))
        space = self.random.choice(("", " ", "\n\t"))
        return ("{" + space + ",".join(f'{space}"{name}":{texts[name]}' for name in names) + "}").encode()

    def _broken(self, format: str, value: bytes) -> tuple[bytes | None, frozenset[str]]:
        random = self.random
        kinds: list[Callable[[], tuple[bytes | None, frozenset[str]]]] = [
            lambda: (None, _UNDECODABLE),
            lambda: (b"", _UNDECODABLE),
            lambda: (value[: random.randrange(len(value))], _UNDECODABLE),
            lambda: (b"\xc1" + random.randbytes(random.randrange(200)), _UNDECODABLE),
            lambda: (value + b"\xc1", _UNDECODABLE),
        ]
        if format == "json":
            kinds += [
                lambda: (b'{"who":"a","at":1,"deep":' + b"[" * random.choice((5_000, 200_000)), _UNDECODABLE),
                lambda: (b'{"who":"a","at":1,"tree":' + b'{"inner":' * 100_000, _UNDECODABLE),
                lambda: (_deep(b'"deep":', b"[", b"]", random.randrange(200, 1_100)), _UNDECODABLE),
                lambda: (_deep(b'"tree":', b'{"inner":', b"}", random.randrange(200, 1_100)), _UNDECODABLE),
                lambda: (b'{"who":"a","at":1,"n":"1"}', _WRONG),
                lambda: (b'{"who":"a","at":1,"real":1e999}', _EITHER),
                lambda: (b'{"who":"a","at":1,"n":1' + b"0" * 5_000 + b"}", _EITHER),
                lambda: (b'{"who":null,"at":1}', _WRONG),
                lambda: (b'{"at":1}', _WRONG),
                lambda: (b'{"who":"\xff","at":1}', _EITHER),
                lambda: (b'{"who":"\\ud800","at":1}', _EITHER),
            ]
        elif format == "packed":
            head = msgspec.msgpack.encode({"who": "a", "at": 1, "x": 0})[:-1]
            kinds += [
                lambda: (head + b"\x91" * 200_000 + b"\xc0", _UNDECODABLE),
                lambda: (head + b"\xdd\xff\xff\xff\xff", _UNDECODABLE),
                lambda: (_packed_tree(random.randrange(200, 1_100)), _UNDECODABLE),
                lambda: (_packed_tree(random.randrange(200, 1_100), b"\x81\x80\xc0"), _UNDECODABLE),
                lambda: (head + b"\xc6\xff\xff\xff\xffabc", _UNDECODABLE),
                lambda: (msgspec.msgpack.encode({"who": 1, "at": 1}), _WRONG),
                lambda: (msgspec.msgpack.encode([1, 2]), _WRONG),
            ]
        else:
            kinds += [
                lambda: (b"\1" + value[1:], _UNDECODABLE),
                lambda: (value[:-1] + b"\2" * 200_000 + b"\0", _UNDECODABLE),
                lambda: (value[:5] + b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + value[5:], _EITHER),
            ]
        return random.choice(kinds)()

    def _headers(self) -> tuple[Headers, frozenset[str] | None]:
        """Headers, and the reasons by them alone: None if they change nothing."""
        random = self.random
        if random.random() < 0.6:
            return (), None
        odd = [
            ("", b""),
            ("\0", b"\xff" * 10),
            ("é" * 300, bytes(300)),
            ("tailrace-reason", b"\xff"),
            ("tailrace-cut", b"1"),
        ]
        odd += [
            ("tailrace-partition", b"9" * 5_000),
            ("traceparent", b"00-"),
            ("tailrace-operators", b"nobody"),
        ]
        odd += [("tailrace-redriven", one) for one in (b"", b"\xff", b"x.dead-letters/0-0@1-" + b"9" * 5_000)]
        odd += [redriven_header(Redriven("0-0", "json", 0, 0, ("nobody",)))]
        found = tuple(random.choices(odd, k=random.choice((1, 3, 200))))
        if random.random() < 0.1:
            return (*found, (UNREADABLE, b"")), _UNDECODABLE
        return found, None


def _deep(name: bytes, opened: bytes, closed: bytes, deep: int) -> bytes:
    """An event with a value of this depth, which is below or above what the stack allows."""
    return b'{"who":"0","at":%d,%s%snull%s}' % (NOW_MS, name, opened * deep, closed * deep)


def _packed_tree(deep: int, other: bytes = b"\xc0") -> bytes:
    """An event with a tree of this depth, and a field of no meaning: such as a map that is the key of a map."""
    head = msgspec.msgpack.encode({"who": "0", "at": NOW_MS, "other": 0, "tree": 0})
    return head[:-7] + other + head[-6:-1] + b"\x81\xa5inner" * deep + b"\xc0"


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()


def encoders(app: tr.App) -> dict[str, Callable[[Any], bytes]]:
    """How the formats that msgspec does not write in another way are written. Avro is written by fastavro."""
    topic: Any = app.topics["avro"]
    topic.codec.prepare()
    head: bytes = topic.codec._head
    schema = fastavro.parse_schema(msgspec.json.decode(topic.codec._schema))

    def avro(event: Any) -> bytes:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, msgspec.to_builtins(event))
        return bytes(head) + file.getvalue()

    return {"packed": msgspec.msgpack.encode, "avro": avro}


class Expected:
    """What a service must have done with records, in the order in which they were made."""

    def __init__(self) -> None:
        self.totals: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """By topic and key: number and sum of the events, after each."""
        self.letters: dict[tuple[str, int], dict[int, frozenset[str]]] = defaultdict(dict)
        """By topic and partition: the reasons by offset."""
        self.count = 0
        self._ends: Counter[tuple[str, int]] = Counter()

    def add(self, made: Made) -> None:
        """Note one more record."""
        place = made.output.topic, made.partition
        offset, self._ends[place] = self._ends[place], self._ends[place] + 1
        self.count += 1
        if made.reasons:
            self.letters[place][offset] = made.reasons
        elif made.event is not None:
            all_of_key = self.totals[f"{place[0]} {made.event.who}"]
            count, total = all_of_key[-1] if all_of_key else (0, 0)
            total += made.event.n
            if -(2**63) <= total < 2**64:
                all_of_key.append((count + 1, total))
            else:
                self.letters[place][offset] = frozenset((FAILED,))


class Service:
    """A worker with all tasks, whose clock stands still."""

    def __init__(self, log: OneCommitLog, app: tr.App, reader: Any = None) -> None:
        self.log, self.app = log, app
        self.plan: Plan = app.plan()
        prepare_log(log, self.plan, create_declared=True)
        self.worker = Worker(
            self.plan,
            log,
            range(PARTITIONS),
            lambda _: MemoryStore(),
            settings=WorkerSettings(
                partition=PartitionSettings(
                    commit_interval_ms=0,
                    real_clock=True,
                    task=TaskSettings(max_record_bytes=MAX_RECORD_BYTES),
                )
            ),
            clock=lambda: NOW_MS,
            reader=reader,
        )
        self.worker.start()

    def work(self) -> None:
        """Take turns until all is read and committed."""
        worked_s = time.monotonic()
        while (worked := self.worker.turn()) or not self._is_settled():
            worked_s = time.monotonic() if worked else worked_s
            assert time.monotonic() < worked_s + PATIENCE_S, "waited in vain until all is read"

    def _is_settled(self) -> bool:
        reader = self.worker._reader
        reader.wait(0.01)
        for slot in self.worker.slots:
            if (one := slot.running) is None or one.dirty:
                return False
            for name, at in one.task.positions.items():
                place = TopicPartition(name, slot.number)
                if reader.past_gaps.get(place, at) < self.log.end_offset(*place):
                    return False
        return True

    def check(self, expected: Expected) -> None:
        """Whether all records were handled, or are letters, in order; and whether a replay agrees."""
        letters: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        last: dict[tuple[int, str, int], int] = {}
        for letter in dead_letters(self.log, "hostile"):
            assert letter.topic is not None
            assert letter.origin_partition is not None
            assert letter.origin_offset is not None
            place = letter.topic, letter.origin_partition
            assert letter.origin_offset not in letters[place], "two letters of one record"
            letters[place][letter.origin_offset] = letter.reason
            assert last.get((letter.partition, *place), -1) < letter.origin_offset, "letters out of order"
            last[letter.partition, *place] = letter.origin_offset
        for place in {*letters, *expected.letters}:
            reasons, due = letters[place], expected.letters[place]
            assert reasons.keys() == due.keys(), (place, sorted(reasons.keys() ^ due.keys())[:3])
            wrong = [(offset, one, due[offset]) for offset, one in reasons.items() if one not in due[offset]]
            assert not wrong, (place, wrong[:3])
        totals: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number in range(PARTITIONS):
            for record in scan(self.log, "totals", number):
                found = msgspec.json.decode(record.value or b"", type=Total)
                totals[f"{found.by} {found.who}"].append((found.count, found.total))
        for name, some in expected.totals.items():
            assert totals.pop(name, []) == some, name[:60]
        assert not totals
        sums = [slot.running.task.totals for slot in self.worker.slots if slot.running is not None]
        assert sum(one.records + one.refused for one in sums) == expected.count
        assert replay(self.plan, self.log).records == sum(one.records for one in sums)


def run(
    log: OneCommitLog,
    append: Callable[[list[Made]], None],
    random: Random,
    rounds: int,
    at_once: int,
    largest: int,
    reader: Any = None,
) -> None:
    """Let a service handle what is appended in rounds, of at most so many records, with texts of this length."""
    app = make_app()
    service, expected = Service(log, app, reader), Expected()
    maker = Maker(random, largest, encoders(app))
    for _ in range(rounds):
        some = [maker.record(random.choice(FORMATS)) for _ in range(random.randrange(at_once))]
        append(some)
        for made in some:
            expected.add(made)
        service.work()
    service.check(expected)
    service.worker.leave()
