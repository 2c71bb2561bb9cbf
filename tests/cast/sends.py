"""Webs of operators that send to one another, made by chance, and what each call must see and draw: worked out in plain Python.

Every handler draws a UUID and a random number, and hands both on in all that it sends. So an id, a number or an order that
depends on the schedule is in the state of each operator behind it. Events often have equal times. The oracle knows of the framework
only what ``core.unit_ids`` and ``engine.ordering`` say in words: how ids are computed, and where events have their places.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any, Literal, NamedTuple
from uuid import UUID
from zlib import crc32

import msgspec

import tailrace as tr

LINEAGE = b"harness"
START_MS = 1_800_000_000_000
APP = "sends"
ORDERS: dict[str, Literal["event-time", "arrival"]] = {"ordered": "event-time", "arrival": "arrival"}


class Item(msgspec.Struct, frozen=True):
    key: str
    at: int
    text: str


class Told(msgspec.Struct, frozen=True):
    text: str


class Out(msgspec.Struct, frozen=True):
    key: str
    text: str


@dataclass
class Node:
    """An operator. ``targets``: own topics that it writes, in this order; then it sends ``messages``, and emits to the ``stream``."""

    name: str
    kind: str
    """``function`` and ``arrival`` take one topic from outside, ``streamed`` a stream, ``ordered`` anything."""
    topics: list[str]
    told: bool = False
    """Whether it takes messages."""
    of_stream: str = ""
    targets: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    stream: str = ""
    timer_ms: int = 0
    """How long after an event its timer fires; 0: it sets none."""
    named: bool = False


@dataclass
class Web:
    nodes: list[Node]
    """Each sends only to those behind it."""
    partitions: int
    repartitioned: list[str]
    topics: list[str]
    """In the order of their declaration."""


def web_of(random: Random) -> Web:
    """An app of two to five operators, the last of which is ordered."""
    outside, own, nodes = ["s0", "s1"], list[str](), list[Node]()
    repartitioned = [name for name in outside if random.random() < 0.2]
    plain = [name for name in outside if name not in repartitioned] or ["s2"]
    count = random.randint(2, 5)
    for number in range(count):
        senders = [one for one in nodes if not one.stream]
        kind = random.choice(("function", "arrival", "ordered", "streamed"))
        kind = "ordered" if number == count - 1 or (kind == "streamed" and not senders) else kind
        node = Node(f"n{number}", kind, [random.choice(plain)] if kind in {"function", "arrival"} else [])
        if kind == "streamed":
            node.of_stream = random.choice(senders).stream = f"st{number}"
        if kind == "ordered":
            node.topics = random.sample(own, min(len(own), random.randint(0, 2))) + random.sample(
                outside, random.randint(0, 2)
            )
            writers = random.sample(nodes, min(len(nodes), random.randint(0, 2)))
            node.told = bool(writers)
            for one in writers:
                one.messages.append(node.name)
            node.topics = node.topics or ([] if node.told else ["s0"])
            node.timer_ms, node.named = random.choice((0, 0, 5, 20)), random.random() < 0.5
        if number < count - 1 and random.random() < 0.8:
            unread = [name for name in own if all(name not in one.topics for one in (*nodes, node))]
            node.targets = random.sample(unread, min(len(unread), 1)) if random.random() < 0.5 else []
            own.append(f"m{number}")
            node.targets.append(own[-1])
        nodes.append(node)
    read = {name for one in nodes for name in one.topics}
    topics = sorted(read | {name for one in nodes for name in one.targets}, key=lambda _: random.random())
    return Web(nodes, random.randint(1, 4), [one for one in repartitioned if one in read], topics)


def rekeyed(key: str, salt: str) -> str:
    """Another key, out of five."""
    return f"k{crc32(f'{key}/{salt}'.encode()) % 5}"


def drawing(uuid: UUID, number: int) -> str:
    """What a call has drawn, as text."""
    return f"{uuid.hex[:8]}.{number}"


def place_of(web: Web, name: str, event: Item) -> int:
    """The partition of an event from outside. A topic with ``repartition=True`` has it by another key."""
    key = event.text if name in web.repartitioned else event.key
    return partition_of(key, web.partitions)


# --- the app


def build(web: Web) -> tr.App:
    app = tr.App(APP, partitions=web.partitions)
    topics: dict[str, tr.Topic[Any, Any]] = {
        name: app.topic(
            name,
            Item,
            key="key",
            event_time="at",
            out_of_order="1h" if name.startswith("s") else "0s",
            idle_after="1000d",
            repartition=name in web.repartitioned,
        )
        for name in web.topics
    }
    out = app.topic("out", Out, key="key")
    streams = {one.stream: app.stream(one.stream, Item) for one in web.nodes if one.stream}
    classes: dict[str, Any] = {}
    for node in web.nodes:
        _add(app, node, topics, streams, out, classes)
    for node in web.nodes:
        targets: list[Any] = [*(topics[name] for name in node.targets), *node.messages, out]
        app.emits[node.name] = (*targets, *([streams[node.stream]] if node.stream else []))
    app.plan()
    return app


def _add(
    app: tr.App,
    node: Node,
    topics: Mapping[str, Any],
    streams: Mapping[str, Any],
    out: Any,
    classes: dict[str, Any],
) -> None:
    takes = [streams[node.of_stream]] if node.of_stream else [topics[name] for name in node.topics]

    def call(key: str, text: str, ctx: tr.Context[str]) -> str:
        at = ctx.event_time
        text = f"{node.name}({text})" if len(text) < 60 else f"{node.name}({crc32(text.encode())})"
        text += drawing(ctx.uuid(), ctx.random.randrange(1_000))
        for name in node.targets:
            ctx.emit(topics[name], Item(rekeyed(key, name), at, text))
        for name in node.messages:
            ctx.send(classes[name], rekeyed(key, name), Told(text))
        if node.stream:
            ctx.emit(streams[node.stream], Item(key, at, text))
        ctx.emit(out, Out(key, text))
        return text

    if node.kind == "function":

        def hand_on(event: Item, ctx: tr.Context[str]) -> None:
            call(event.key, event.text, ctx)

        app.process(*takes, name=node.name)(hand_on)
        return

    class Acting(tr.Actor, order=ORDERS.get(node.kind)):
        seen: list[str] = tr.field(default_factory=list)

        def handle(self, text: str, ctx: tr.Context[str]) -> None:
            self.seen.append(call(ctx.key, text, ctx))
            if node.timer_ms:
                ctx.set_timer(ctx.event_time + node.timer_ms, "due" if node.named else None)

        if takes:

            @tr.process(*takes)
            def taken(self, event: Item, ctx: tr.Context[str]) -> None:
                self.handle(event.text, ctx)

        if node.told:

            @tr.on_message
            def heard(self, message: Told, ctx: tr.Context[str]) -> None:
                self.handle(message.text, ctx)

        if node.timer_ms and node.named:

            @tr.on_timer("due")
            def named(self, ctx: tr.Context[str]) -> None:
                self.seen.append(call(ctx.key, "timer", ctx))

        elif node.timer_ms:

            @tr.on_timer
            def unnamed(self, ctx: tr.Context[str]) -> None:
                self.seen.append(call(ctx.key, "timer", ctx))

    classes[node.name] = app.actor(name=node.name)(Acting)


# --- what it must come to


class Fed(NamedTuple):
    """A record from outside, as it is in the log."""

    topic: str
    partition: int
    offset: int
    event: Item


class Arrived(NamedTuple):
    """An event on its way to an operator, in the order of its place."""

    at: int
    rank: int
    tail: Any
    key: str
    text: str
    id: bytes


def _hash(data: bytes, person: bytes = b"") -> bytes:
    return blake2b(data, digest_size=16, person=person).digest()


def partition_of(key: str, partitions: int) -> int:
    """Kafka's partitioner: 32-bit MurmurHash2."""
    data, mask, m = key.encode(), 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    for at in range(0, len(data) - 3, 4):
        k = struct.unpack_from("<I", data, at)[0] * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[len(data) // 4 * 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


@dataclass
class Oracle:
    web: Web
    seen: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    """By operator and key, its state."""
    outs: list[tuple[str, str]] = field(default_factory=list)

    def run(self, fed: Sequence[Fed]) -> Oracle:
        web = self.web
        self._read = {name for one in web.nodes for name in one.topics}
        self._by_name = {one.name: one for one in web.nodes}
        self._of_stream = {one.of_stream: one for one in web.nodes if one.of_stream}
        self._sent: dict[tuple[str, int], int] = defaultdict(int)
        self._arriving: dict[tuple[str, int], list[Arrived]] = defaultdict(list)
        for topic in web.topics:
            self._take_in(topic, sorted(one for one in fed if one.topic == topic))
        for node in web.nodes:
            for task in range(web.partitions):
                if node.kind == "ordered":
                    self._in_order(node, task)
                elif not node.of_stream:
                    for one in self._arriving[node.name, task]:  # in the order of offsets
                        self._unit(node, task, one.key, one.at, one.text, one.id)
        return self

    def _take_in(self, topic: str, fed: Iterable[Fed]) -> None:
        for one in fed:
            place = _hash(f"{topic}/{one.partition}".encode())[:8] + one.offset.to_bytes(8, "big")
            if topic in self.web.repartitioned:
                self._send(
                    f"{APP}.{topic}.by-key",
                    one.partition,
                    place,
                    0,
                    topic,
                    one.event.key,
                    one.event.at,
                    one.event.text,
                )
                continue
            for node in self.web.nodes:
                if topic in node.topics:
                    tail = b"\0" + one.offset.to_bytes(8, "big") if topic.startswith("m") else one.offset
                    found = Arrived(
                        one.event.at, self.web.topics.index(topic), tail, one.event.key, one.event.text, place
                    )
                    self._arriving[node.name, one.partition].append(found)

    def _send(
        self, operator: str, task: int, cause: bytes, n: int, to: str, key: str, at: int, text: str
    ) -> None:
        """Let an operator send to a topic, or to the inbox of an actor (``to`` is its name)."""
        name, number = operator.encode(), self._sent[operator, task]
        self._sent[operator, task] += 1
        id_ = _hash(cause + n.to_bytes(4, "big") + name + b"\0" + key.encode())
        tail = name + b"\0" + task.to_bytes(4, "big") + number.to_bytes(8, "big")
        is_message = to in self._by_name
        rank = (
            len(self.web.topics) + 1 if is_message else self.web.topics.index(to)
        )  # topic ``out`` is the last one
        for node in self.web.nodes:
            if (node.name == to) if is_message else (to in node.topics):
                place = Arrived(at, rank, tail, key, text, id_)
                self._arriving[node.name, partition_of(key, self.web.partitions)].append(place)

    def _in_order(self, node: Node, task: int) -> None:
        timers: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        waiting = deque(sorted(self._arriving[node.name, task]))
        while waiting or timers:
            first = min(((at, key.encode(), name) for (key, name), (at, _) in timers.items()), default=None)
            if waiting and (first is None or waiting[0].at <= first[0]):
                one = waiting.popleft()
                self._unit(node, task, one.key, one.at, one.text, one.id)
                if node.timer_ms:
                    at = one.at + node.timer_ms
                    timers[one.key, b"ndue" if node.named else b"u" + (at + 2**63).to_bytes(8, "big")] = (
                        at,
                        one.id,
                    )
            else:
                assert first is not None
                at, key, name = first
                _, cause = timers.pop((key.decode(), name))
                operator = node.name.encode()
                cause = _hash(cause + b"\0" + at.to_bytes(8, "big") + operator + b"\0" + name, b"timer")
                self._unit(node, task, key.decode(), at, "timer", cause)

    def _unit(self, node: Node, task: int, key: str, at: int, text: str, cause: bytes) -> None:
        """A call, and those of the streams behind it."""
        calls = deque([(node, text, cause)])
        while calls:
            one, text, cause = calls.popleft()
            operator, n = one.name.encode(), 0
            text = f"{one.name}({text})" if len(text) < 60 else f"{one.name}({crc32(text.encode())})"
            ours = repr(key) if one.kind == "function" else key
            drawn = [
                _hash(
                    bytes((len(LINEAGE),))
                    + LINEAGE
                    + cause
                    + draw.to_bytes(4, "big")
                    + operator
                    + b"\0"
                    + ours.encode(),
                    b"draw",
                )
                for draw in (1, 2)
            ]
            number = Random(int.from_bytes(drawn[1], "big")).randrange(1_000)
            text += drawing(UUID(bytes=drawn[0], version=4), number)
            inside = [name for name in one.targets if name in self._read]
            for name in (*inside, *one.messages):  # what nobody in the app reads is not numbered
                self._send(one.name, task, cause, n, name, rekeyed(key, name), at, text)
                n += 1
            if one.stream:
                stream_id = _hash(cause + n.to_bytes(4, "big") + operator + b"\0")
                calls.append((self._of_stream[one.stream], text, stream_id))
            self.outs.append((key, text))
            if one.kind != "function":
                self.seen[one.name, key].append(text)
