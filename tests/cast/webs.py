"""Apps of several operators, made by chance, and what they must come to: worked out from all events at once, in plain Python.

Actors sum what they get over windows, by timers, and hand the sums on; functions hand on what they get under another key. Between
them are topics of the app, streams, topics that are repartitioned, and messages. Nothing of it depends on an order: so if
event time is right at every step, and nothing is late, the results are those of the oracle, whatever the schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

import tailrace as tr
from tailrace.core.records import Output

SOURCES = 3
KEYS = 7


class Piece(msgspec.Struct, frozen=True):
    """An amount of a key at an instant. ``hops`` is how far it has come: in a circle it goes no further than ``FAR``."""

    key: str
    at: int
    amount: int
    hops: int = 0


class Told(msgspec.Struct, frozen=True):
    amount: int
    hops: int


class Result(msgspec.Struct, frozen=True):
    """What an operator at the end of the web has come to."""

    who: str
    key: str
    at: int
    amount: int


FAR = 4


def rekeyed(key: str, salt: str) -> str:
    """Another key, out of few."""
    return f"k{crc32(f'{key}/{salt}'.encode()) % KEYS}"


@dataclass
class Node:
    """An operator: what it takes, and where what it makes goes. ``width`` is that of an actor's windows; 0: a function."""

    name: str
    width: int
    topics: list[str]
    stream: str | None = None
    """The stream that it takes."""
    gives: str | None = None
    """The stream that it writes."""
    targets: list[str] = field(default_factory=list)
    sends: list[str] = field(default_factory=list)
    gets_messages: bool = False
    order: Any = None
    """Of its events; None: that of the web."""
    commutes: bool = False
    """Its digest does not depend on that order."""


@dataclass(frozen=True)
class Plant:
    """A change of one operator: of what it takes with some keys, a part counts for ``more``, or, if that is None, not at all."""

    node: str = ""
    keys: frozenset[str] = frozenset()
    times: frozenset[int] = frozenset()
    """What is changed, by its event time."""
    since: int = 0
    """The first call of a key that is changed, and all after it; 0: ``times`` says it."""
    more: int | None = None

    def counts(self, node: str, one: Piece, call: int) -> int | None:
        """What a piece counts for; None: nothing."""
        if node != self.node or one.key not in self.keys:
            return one.amount
        if call < self.since if self.since else one.at not in self.times:
            return one.amount
        return None if self.more is None else one.amount + self.more


@dataclass
class Web:
    """An app by chance. ``nodes`` are in an order in which nobody hands anything back, unless it has circles."""

    nodes: list[Node]
    partitions: int
    out_of_order: int
    repartitioned: set[str]
    circles: bool
    idle_after: str = "1000d"
    """Of the sources. What falls idle may be late when it wakes: so unless a test minds that, they do not."""
    order: Any = "arrival"
    plant: Plant = Plant()
    app: tr.App = field(init=False)

    def __post_init__(self) -> None:
        self.app = build(self)

    def order_of(self, node: Node) -> Any:
        """In which order an operator takes what it gets."""
        return node.order or self.order

    @property
    def sources(self) -> list[str]:
        """The topics from outside that are read."""
        return sorted({name for node in self.nodes for name in node.topics if name.startswith("s")})


def web_of(random: Random, *, circles: bool = False, order: str = "arrival") -> Web:
    """An app of two to five operators."""
    nodes: list[Node] = []
    inside: list[str] = []
    for number in range(random.randint(2, 5)):
        is_actor = random.random() < 0.6 or (number and not any(one.width for one in nodes))
        width = random.choice((1_000, 4_000, 15_000)) if is_actor else 0
        sources = [f"s{n}" for n in range(SOURCES)]
        most = 3 if is_actor else 2
        topics = random.sample(sources, random.randint(0, 2)) + random.sample(
            inside, min(len(inside), random.randint(0, 2))
        )
        node = Node(f"n{number}", width, topics[:most])
        writers = [one for one in nodes if one.gives is None]
        if is_actor and writers and random.random() < 0.4:
            random.choice(writers).gives = node.stream = f"st{number}"
        senders = [one for one in nodes if one.width]
        if is_actor and senders and random.random() < 0.4:
            node.gets_messages = True
            for one in random.sample(senders, random.randint(1, min(2, len(senders)))):
                one.sends.append(node.name)
        if not node.topics and not node.gets_messages and node.stream is None:
            node.topics = [random.choice(sources)]
        if random.random() < 0.8:
            topic = f"m{number}"
            node.targets.append(topic)
            inside.append(topic)
            if random.random() < 0.2 and inside[:-1]:
                node.targets.append(random.choice(inside[:-1]))
                if not circles and _reaches([*nodes, node], node.targets[-1], node.name):
                    node.targets.pop()
        nodes.append(node)
    if circles:
        back = random.choice([one for one in nodes if one.targets] or [nodes[-1]])
        if not back.targets:
            back.targets.append("m9")
        random.choice(nodes).topics.append(back.targets[0])
        actors = [one for one in nodes if one.width]
        if len(actors) > 1 and random.random() < 0.5:
            actors[-1].sends.append(actors[0].name)
            actors[0].gets_messages = True
    for node in nodes:
        node.topics = sorted(set(node.topics))
    read = {name for node in nodes for name in node.topics}
    return Web(
        nodes,
        random.choice((1, 2, 3)),
        random.choice((0, 700, 5_000)),
        {name for name in sorted(read) if random.random() < 0.2},
        circles,
        order=order,
    )


def _reaches(nodes: list[Node], topic: str, name: str) -> bool:
    """Whether what is written to a topic comes to an operator."""
    seen: set[str] = set()
    waiting = [one for one in nodes if topic in one.topics]
    while waiting:
        node = waiting.pop()
        if node.name in seen:
            continue
        seen.add(node.name)
        waiting += [
            one
            for one in nodes
            if set(node.targets) & set(one.topics)
            or one.name in node.sends
            or (node.gives is not None and one.stream == node.gives)
        ]
    return name in seen


# --- the app ------------------------------------------------------------------------------------------------------


def build(web: Web) -> tr.App:
    app = tr.App("proof", partitions=web.partitions)
    names = {name for node in web.nodes for name in (*node.topics, *node.targets)}
    topics: dict[str, tr.Topic[Any, Any]] = {}
    for name in sorted(names):
        outside = name.startswith("s")
        topics[name] = app.topic(
            name,
            Piece,
            key="key",
            event_time="at",
            out_of_order=web.out_of_order if outside else 0,
            # What is inside must not fall idle by itself, however short the time is.
            idle_after=web.idle_after if outside else "1s",
            repartition=name in web.repartitioned,
        )
    results = app.topic("results", Result, key="key", event_time="at")
    named = {node.gives for node in web.nodes if node.gives is not None}
    streams = {name: app.stream(name, Piece) for name in sorted(named)}
    classes: dict[str, Any] = {}
    for node in web.nodes:
        takes: list[Any] = [topics[name] for name in node.topics]
        targets = [topics[name] for name in node.targets]
        if node.width:
            if node.stream is not None:
                takes.append(streams[node.stream])
            classes[node.name] = _actor(web, app, node, takes, targets, results, streams, classes)
        else:
            out = streams.get(node.gives) if node.gives is not None else None
            _function(web, app, node, takes, targets, results, out)
    for node in web.nodes:
        told: list[Any] = [topics[name] for name in node.targets] + [results] + [*node.sends]
        if node.gives is not None:
            told.append(streams[node.gives])
        app.emits[node.name] = tuple(told)
    app.plan()
    return app


def _function(web: Web, app: tr.App, node: Node, takes: Any, targets: Any, results: Any, stream: Any) -> None:
    def hand_on(event: Piece, ctx: tr.Context[str]) -> None:
        amount = web.plant.counts(node.name, event, 0)
        if event.hops >= FAR or amount is None:
            return
        if stream is not None:
            ctx.emit(stream, msgspec.structs.replace(event, amount=amount, hops=event.hops + 1))
        for target in targets:
            key = rekeyed(event.key, node.name)
            ctx.emit(target, Piece(key, ctx.event_time, amount, event.hops + 1))
        if not targets and stream is None:
            ctx.emit(results, Result(node.name, event.key, ctx.event_time, amount))

    app.process(*takes, name=node.name, order=web.order_of(node))(hand_on)


def _actor(
    web: Web,
    app: tr.App,
    node: Node,
    takes: Any,
    targets: Any,
    results: Any,
    streams: Any,
    classes: dict[str, Any],
) -> Any:
    order = web.order_of(node)

    class Windows(tr.Actor, order=order):
        sums: dict[str, int] = tr.field(default_factory=dict)
        hops: dict[str, int] = tr.field(default_factory=dict)
        calls: int = 0
        digest: int = 0
        """Of all that it got, in its order: two runs that differ in that have other rows."""
        instant: tuple[int, int] = (0, 0)
        """In the order of event time: the last instant, and the sum of its amounts, whose order may differ."""

        def add(self, given: int, hops: int, ctx: tr.Context[str]) -> None:
            if hops >= FAR:
                return
            self.calls += 1
            amount = web.plant.counts(node.name, Piece(ctx.key, ctx.event_time, given), self.calls)
            if amount is None:
                return
            told = ctx.event_time, amount
            if order == "event-time":
                at, before = self.instant
                told, self.instant = (
                    self.instant,
                    (ctx.event_time, amount + (before if at == ctx.event_time else 0)),
                )
            if node.commutes:
                self.digest = (self.digest + crc32(f"{told}".encode())) % (1 << 32)
            elif order == "arrival" or told[0] != ctx.event_time:
                self.digest = crc32(f"{told}".encode(), self.digest)
            window = str(ctx.event_time // node.width)
            self.sums[window] = self.sums.get(window, 0) + amount
            self.hops[window] = max(self.hops.get(window, 0), hops)
            ctx.set_timer((int(window) + 1) * node.width - 1, f"end:{window}")

        if takes:

            @tr.process(*takes)
            def taken(self, event: Piece, ctx: tr.Context[str]) -> None:
                self.add(event.amount, event.hops, ctx)

        if node.gets_messages:

            @tr.on_message
            def told(self, message: Told, ctx: tr.Context[str]) -> None:
                self.add(message.amount, message.hops, ctx)

        @tr.on_timer("end")
        def end(self, ctx: tr.Context[str]) -> None:
            window = str(ctx.timer_name).partition(":")[2]
            amount, hops = self.sums.pop(window), self.hops.pop(window)
            for target in targets:
                ctx.emit(target, Piece(rekeyed(ctx.key, node.name), ctx.event_time, amount, hops + 1))
            if node.gives is not None:
                ctx.emit(streams[node.gives], Piece(ctx.key, ctx.event_time, amount, hops + 1))
            for name in node.sends:
                ctx.send(classes[name], rekeyed(ctx.key, name), Told(amount, hops + 1))
            ctx.emit(results, Result(node.name, ctx.key, ctx.event_time, amount))

    return app.actor(name=node.name)(Windows)


# --- what goes in, and what must come out -----------------------------------------------------------------------


def pieces(web: Web, random: Random, most: int = 60) -> dict[str, list[Piece]]:
    """Events of the sources, each out of order by no more than declared."""
    found: dict[str, list[Piece]] = {}
    for name in web.sources:
        at, some = random.choice((0, 50_000)), list[Piece]()
        for _ in range(random.randint(0, most)):
            at += random.choice((0, 1, 300, 2_000, 20_000))
            back = random.randint(0, web.out_of_order) if web.out_of_order else 0
            some.append(Piece(f"k{random.randrange(KEYS)}", max(0, at - back), random.randint(1, 9)))
        found[name] = some
    return found


def records(web: Web, found: dict[str, list[Piece]]) -> Iterator[Output]:
    """The events as producers write them; those that are repartitioned with other keys."""
    for name, some in found.items():
        for number, one in enumerate(some):
            key = b"%d" % number if name in web.repartitioned else one.key.encode()
            yield Output(name, key, msgspec.json.encode(one), one.at)


class Kept(NamedTuple):
    """What a key of an operator has come to."""

    calls: int
    counted: list[Piece]
    """In the order in which it was handled, if ``is_known``."""


class Reached(NamedTuple):
    """What a web without circles comes to."""

    results: Counter[Result]
    given: dict[str, list[Piece]]
    """By topic, stream or inbox, what was written there."""
    kept: dict[str, dict[str, Kept]]
    """By operator and key."""


def oracle(web: Web, found: dict[str, list[Piece]]) -> Counter[Result]:
    """What a web without circles has to come to, each operator over all that it ever gets."""
    return reach(web, found).results


def reach(web: Web, found: dict[str, list[Piece]], until: int = 1 << 62) -> Reached:
    """As ``oracle``, with all that leads there, if event time comes to ``until`` and no further."""
    results: Counter[Result] = Counter()
    reached: dict[str, list[Piece]] = {name: list(some) for name, some in found.items()}
    kept: dict[str, dict[str, Kept]] = {}
    for node in _in_order(web):
        got = [piece for name in node.topics for piece in reached.get(name, ())]
        got += reached.get(f"inbox {node.name}", ())
        if node.width and node.stream is not None:
            got += reached.get(node.stream, ())
        if web.order_of(node) == "event-time":
            got = sorted((one for one in got if one.at <= until), key=lambda one: one.at)
        of_key = kept[node.name] = dict[str, Kept]()
        for one in got:
            if one.hops < FAR:
                calls, counted = of_key.get(one.key, (0, list[Piece]()))
                of_key[one.key] = Kept(calls + 1, counted)
                amount = web.plant.counts(node.name, one, calls + 1)
                if amount is not None:
                    counted.append(msgspec.structs.replace(one, amount=amount))
        taken = [one for each in of_key.values() for one in each.counted]
        made: list[Piece] = []
        if node.width:
            made = [
                Piece(key, end, amount, hops + 1)
                for (key, end), (amount, hops) in sums(node, taken).items()
                if end <= until
            ]
        else:
            made = [msgspec.structs.replace(one, hops=one.hops + 1) for one in taken]
        if node.gives is not None:
            reached.setdefault(node.gives, []).extend(made)
        for one in made:
            turned = msgspec.structs.replace(one, key=rekeyed(one.key, node.name))
            for target in node.targets:
                reached.setdefault(target, []).append(turned)
            for name in node.sends:
                turned_to = msgspec.structs.replace(one, key=rekeyed(one.key, name))
                reached.setdefault(f"inbox {name}", []).append(turned_to)
            if node.width or (not node.targets and node.gives is None):
                results[Result(node.name, one.key, one.at, one.amount)] += 1
    return Reached(results, reached, kept)


def sums(node: Node, taken: list[Piece]) -> dict[tuple[str, int], tuple[int, int]]:
    """The sum of the amounts, and the most hops, by key and end of window."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for one in taken:
        place = one.key, (one.at // node.width + 1) * node.width - 1
        amount, hops = found.get(place, (0, 0))
        found[place] = amount + one.amount, max(hops, one.hops)
    return found


def _in_order(web: Web) -> list[Node]:
    """The operators, each after all that hand something to it."""
    left, found = list(web.nodes), list[Node]()
    while left:
        for node in left:
            others = [one for one in left if one is not node]
            gets = {topic for one in others for topic in one.targets} & set(node.topics)
            told = any(node.name in one.sends for one in others)
            streamed = node.stream is not None and any(one.gives == node.stream for one in others)
            if not gets and not told and not streamed:
                left.remove(node)
                found.append(node)
                break
        else:
            raise AssertionError("a circle")
    return found
