"""Random programs of windows and joins, their events, and what they must give: composed of the oracles of single operators.

``Program(seed)`` draws some operators over three topics, over each other's results, and over results under another key; some events, of
which some are late; and computes all outputs in plain Python. ``tests.library.random_programs:app_7`` is the app of seed 7.

The results of an operator are ``Items``: by key, its events with their times, and the time up to which timers have fired before
each. Operators that are connected by streams handle events in the order of event time if one of them does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

import tailrace as tr
from tailrace.core.records import Output
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.partitioner import partition_of
from tests.library.oracle_rolling import turns

BEGIN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
PARTITIONS = 3
KEYS = "k0", "k1", "k2", "k3"
FIXED = 29, 63, 7
"""Seeds whose programs have, together, operators of all kinds."""
IDLE: Any = {"idle_after": "10h", "time_range": (-(10**15), 10**15)}


class Sent(msgspec.Struct, tr.Keyed[str], frozen=True):
    """An event of each topic."""

    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int
    id: str
    amount: float


class Row(msgspec.Struct, tr.Keyed[str], frozen=True):
    """An entry of the table that every task reads."""

    id: tr.Key[str]
    n: int


class Given(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A result of an operator."""

    key: tr.Key[str]
    at: tr.EventTime[int]
    operator: str
    what: str


class Filled(msgspec.Struct, frozen=True):
    """A result that an operator writes by itself."""

    key: str
    start: int
    end: int
    value: float
    kind: str


class Item(NamedTuple):
    """An event of an edge."""

    fired_to: int
    time: int
    event: Any


Items: TypeAlias = dict[str, list[Item]]


class Result(NamedTuple):
    """What an operator gives for a key, and the events that it does not take."""

    items: list[Item]
    late: Sequence[Any] = ()


class Node(msgspec.Struct, kw_only=True, eq=False):
    """An operator, or a topic: what is known of its events decides what may take them."""

    name: str
    edge: Any
    inputs: list[Node] = []
    of_key: Callable[[str, list[list[Item]]], Result] | None = None
    ordered: bool = False
    """It asks for the order of event time."""
    settled: bool = True
    """The order of the events of one key and time is known."""
    in_time: bool = False
    """None of them is late."""
    rank: int = 0
    """The place among events of one time: of a topic by its declaration. ``PASSED`` before, ``TIMERS`` after those of all topics."""
    chains: bool = True
    """Others may take them."""
    ends: bool = True
    """Its state is empty at the end."""
    routes: bool = False
    """Its late events go to the topic for these."""
    published: bool = True
    looks_up: bool = False

    @property
    def takes_corrections(self) -> bool:
        """Whether windows over it may take late events after their end: in the order of arrival only."""
        return self.is_topic and not self.in_time

    @property
    def is_topic(self) -> bool:
        return self.of_key is None


PASSED, TIMERS = -1, 50


def plain(one: Any) -> Any:
    """An event or result as lists and numbers. What of a case no oracle knows is left out."""
    if isinstance(one, tr.Pair):
        return [plain(one.left), plain(one.right)]
    if isinstance(one, tr.Gathered):
        return [[plain(part) for part in one.parts], list(one.repeated)]
    if isinstance(one, tr.Windowed):
        return [one.key, one.start, one.end, plain(one.value), one.kind]
    if isinstance(one, list):
        return [plain(each) for each in one]
    return msgspec.to_builtins(one)


def shown(one: Any) -> str:
    return msgspec.json.encode(plain(one), order="sorted").decode()


def weight(event: Any) -> float:
    """The number of an event of any kind."""
    return event.amount if isinstance(event, Sent) else crc32(shown(event).encode()) % 997 / 8


def ident(event: Any) -> str:
    """The id of an event of any kind."""
    return event.id if isinstance(event, Sent) else f"i{crc32(shown(event).encode()) % 6}"


def moved(event: Any, key: str, at: int) -> Sent:
    """A result under another key."""
    return Sent(f"m{int(key[1:]) % 2}", at, crc32(shown(event).encode()), ident(event), weight(event))


def given(name: str, key: str, at: int, event: Any) -> Given:
    """What is published of a result. The time of an early one is that of any event."""
    if isinstance(event, tr.Windowed) and event.kind == "early":
        at = event.end
    return Given(key, at, name, shown(event))


class Program:
    """A drawn app with its events and expected outputs."""

    def __init__(self, seed: int, alone: Any = None) -> None:
        """``alone``: the only operator that is drawn."""
        from tests.library import random_operators as draw

        self.random = Random(f"program {seed}")
        random = self.random
        self.seed = seed
        self.app = app = tr.App(f"random-{seed}", partitions=PARTITIONS)
        self.out_of_order = {name: random.choice((0, 30, 200)) for name in "abc"}
        self.rows = {f"i{n}": Row(f"i{n}", n) for n in range(0, 12, 2)}
        self.table = app.topic(f"r{seed}-table", Row, broadcast=True)
        self.topics = {
            name: app.topic(f"r{seed}-{name}", Sent, out_of_order=self.out_of_order[name], **IDLE)
            for name in "abc"
        }
        self.late = app.topic(f"r{seed}-late", Sent, **IDLE)
        self.given = app.topic(f"r{seed}-given", Given, **IDLE)
        self.filled = app.topic(f"r{seed}-filled", Filled, key="key")
        self.last = app.table(f"r{seed}-last", Filled, key=("key", "start"))
        self.outputs: list[tr.Topic[Any, Any]] = [self.late, self.given, self.filled, self.last]
        sources = [
            Node(name=name, edge=topic, rank=rank) for rank, (name, topic) in enumerate(self.topics.items())
        ]
        self.nodes: list[Node] = []
        """The operators, each after those that it takes."""
        self.feeds: dict[str, Node] = {}
        """By the name of a topic inside of the app, what it comes from."""
        first = self._stage(
            [alone] if alone else draw.OPERATORS, sources, 1 if alone else random.choice((3, 5, 7))
        )
        if alone:
            pass
        elif outs := [one for one in first if one.in_time and one.chains]:
            inner = self._moved(random.choice(outs), rank=len(sources))
            self._stage(draw.OPERATORS, [inner, random.choice(sources)], random.choice((1, 3)))
        for one in self.nodes:
            if one.published:
                self._publish(one)

    def _stage(self, operators: Sequence[Any], sources: list[Node], count: int) -> list[Node]:
        """Draw operators over these topics and each other."""
        made: list[Node] = []
        while len(made) < count:
            usable = [*sources, *[one for one in made if one.chains for _ in range(2)]]
            name = f"o{len(self.nodes)}"
            found = self.random.choice(operators)(self, name, usable)
            if found is not None:
                made.append(found)
                self.nodes.append(found)
        return made

    def _moved(self, of: Node, rank: int) -> Node:
        name = f"r{self.seed}-moved"
        topic = self.app.topic(name, Sent, **IDLE)

        def move(event: Any, ctx: Any) -> None:
            ctx.emit(topic, moved(event, ctx.key, ctx.event_time))

        move.__annotations__ = {}
        self.app.process(of.edge, name=f"move-{of.name}", emits=(topic,))(move)
        self.feeds[name] = of
        self.outputs.append(topic)
        return Node(name=name, edge=topic, rank=rank, settled=False, in_time=True)

    def _publish(self, of: Node) -> None:
        to = self.given

        def publish(event: Any, ctx: Any) -> None:
            ctx.emit(to, given(of.name, ctx.key, ctx.event_time, event))

        publish.__annotations__ = {}
        self.app.process(of.edge, name=f"publish-{of.name}", emits=(to,))(publish)

    # --- the events ---

    @property
    def taken(self) -> list[str]:
        """The topics that are inputs."""
        found = {one.name for node in self.nodes for one in node.inputs}
        return [name for name in self.topics if name in found]

    def events(self, count: int) -> list[tuple[Any, Any]]:
        """Topics and events: the table, then bursts and pauses, out of order, some far behind, and some with equal times."""
        random = Random(f"events {self.seed}")
        topics = [self.topics[name] for name in self.taken]
        rows = self.rows.values() if any(one.looks_up for one in self.nodes) else ()
        found: list[tuple[Any, Any]] = [(self.table, one) for one in rows]
        now, disorder = random.choice((BEGIN_MS, BEGIN_MS, -500)), random.choice((0, 40, 300))
        dense = random.random() < 0.5  # then many are as far apart as a bound allows, and not more
        for n in range(count):
            steps = (0, 1, 1, 2) if dense else (0, 1, 1, 3, 10, random.randrange(200))
            now += 9 * HOUR_MS if n % 70 == 69 else random.choice(steps)
            behind = random.randrange(disorder + 1) if random.random() < 0.9 else random.randrange(800)
            amount = random.choice((0.1, 1e16, -1e16, 3.0, random.random(), -random.random()))
            key = random.choice(KEYS[: 1 if n % 3 else 4])
            one = Sent(key, now - behind, n, f"i{random.randrange(12)}", amount)
            found.append((random.choice(topics), one))
        return found

    def ending(self) -> list[tuple[Any, Any]]:
        """An event of each key and topic, later than all others: then no partition is idle while windows wait in it."""
        at = BEGIN_MS + 1_000 * HOUR_MS
        return [
            (self.topics[name], Sent(key, at, n, "end", 1.0))
            for name in self.taken
            for n, key in enumerate(KEYS)
        ]

    # --- what they must give ---

    def expected(self, events: Sequence[tuple[Any, Any]]) -> Expected:
        """All outputs."""
        sent = {name: [one for topic, one in events if topic is self.topics[name]] for name in self.topics}
        ordered, results = self._ordered(), dict[str, Items]()
        found = Expected(Counter(), Counter(), Counter(), {})
        for node in self.nodes:
            inputs = [
                self._read(one, sent, results, ordered=node.name in ordered)
                if one.is_topic
                else results[one.name]
                for one in node.inputs
            ]
            items = results[node.name] = Items()
            for key in sorted({key for one in inputs for key in one}):
                assert node.of_key is not None
                result = node.of_key(key, [one.get(key, []) for one in inputs])
                items[key] = result.items
                if node.routes:
                    found.late.update(result.late)
                else:
                    found.dropped += len(result.late)
                if node.published:
                    found.given.update(given(node.name, key, one.time, one.event) for one in result.items)
                else:
                    into = [_filled(one.event) for one in result.items]
                    found.filled.update(into if node.edge is self.filled else ())
                    found.last.update({(one.key, one.start): one for one in into if node.edge is self.last})
        return found

    def _ordered(self) -> set[str]:
        """The operators that are connected by streams with one that asks for the order of event time."""
        groups: dict[str, set[str]] = {one.name: {one.name} for one in self.nodes}
        for node in self.nodes:
            for one in node.inputs:
                if not one.is_topic:
                    groups[node.name] |= groups[one.name]
                    for name in groups[node.name]:
                        groups[name] = groups[node.name]
        return {name for one in self.nodes if one.ordered for name in groups[one.name]}

    def _read(
        self, topic: Node, sent: dict[str, list[Sent]], results: dict[str, Items], *, ordered: bool
    ) -> Items:
        """The events of a topic, in the order in which they are handled."""
        found = Items()
        if topic.name in self.feeds:
            for key, items in results[self.feeds[topic.name].name].items():
                for _, time, event in items:
                    one = moved(event, key, time)
                    found.setdefault(one.key, []).append(Item(time - 1, time, one))
            return {key: sorted(items, key=lambda one: one.time) for key, items in found.items()}
        encode = key_codec_for(str).encode
        for partition in range(PARTITIONS):
            some: Any = [
                one for one in sent[topic.name] if partition_of(encode(one.key), PARTITIONS) == partition
            ]
            for turn in turns(some, self.out_of_order[topic.name], ordered=ordered):
                found.setdefault(turn.event.key, []).append(Item(turn.fired_to, turn.event.at, turn.event))
        return found


class Expected(msgspec.Struct):
    """What the topics of a program hold at the end."""

    given: Counter[Given]
    late: Counter[Sent]
    filled: Counter[Filled]
    last: dict[tuple[str, int], Filled]
    dropped: int = 0
    """Late events that are only counted."""


def _filled(one: tr.Windowed[str, Any]) -> Filled:
    return Filled(one.key, one.start, one.end, float(one.value), one.kind)


def records(events: Sequence[tuple[Any, Any]]) -> list[Output]:
    """The events as records of a log."""
    return [
        Output(topic.name, topic.encode_key(one), topic.encode(one), getattr(one, "at", 0))
        for topic, one in events
    ]


def more_seeds() -> range:
    """Those that ``make fuzz`` adds, for tests with processes."""
    first, count = (int(os.environ.get(f"TAILRACE_{name}", "0")) for name in ("FIRST_SEED", "SEEDS"))
    return range(first, first + count // 500)


@lru_cache(8)
def program(seed: int) -> Program:
    return Program(seed)


def __getattr__(name: str) -> Any:
    """The app of a seed, for other processes: ``app_7``."""
    if name.startswith("app_") and name[4:].isdigit():
        return program(int(name[4:])).app
    raise AttributeError(name)
