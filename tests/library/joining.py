"""Apps of one join over topics of A, B and C, with random histories, run and compared with the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from random import Random
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.partitioner import partition_of
from tailrace.testing import Harness
from tests.library import oracle_joins as oracle
from tests.library.oracle_joins import Arrival, Result

BEGIN_MS = 1_700_000_000_000
FAR = (-(10**15), 10**15)
HOWS = "inner", "left", "right", "full"


class A(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int


class B(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int


class C(msgspec.Struct, tr.Keyed[str], frozen=True):
    """With a method that runs when it is decoded: it has no fixed point."""

    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None: ...


class Given(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: int
    parts: str


class World:
    """An app of one operator over topics of A, B and C, whose results are published."""

    def __init__(self, random: Random, join: Callable[[World], tr.Stream[Any, str]], inputs: int = 2) -> None:
        self.partitions, self.out_of_order = (
            random.choice([1, 1, 3]),
            [random.choice([0, 30, 200]) for _ in range(inputs)],
        )
        self.routes = random.random() < 0.5
        self.app = tr.App("joins", partitions=self.partitions)
        self.topics: list[tr.Topic[Any, str]] = [
            self.app.topic(name, cls, out_of_order=self.out_of_order[rank], time_range=FAR)
            for rank, (name, cls) in enumerate(zip("abc"[:inputs], (A, B, C), strict=False))
        ]
        self.late: list[tr.Topic[Any, str]] = [
            self.app.topic(f"late-{one.name}", one.type, time_range=FAR) for one in self.topics
        ]
        self.given = given = self.app.topic("given", Given, event_time="at", time_range=FAR)

        @self.app.process(join(self))
        def publish(one: Any, ctx: tr.Context[str]) -> None:
            ctx.emit(given, Given(ctx.key, ctx.event_time, shown(*parts_of(one))))

    def options(self, *inputs: int) -> dict[str, Any]:
        """``late=`` for these inputs, or nothing."""
        return {"late": tuple(self.late[one] for one in inputs)} if self.routes else {}

    def expected(
        self, sent: list[Any], of_key: Callable[[list[list[Arrival]]], list[Result]]
    ) -> tuple[dict[str, list[Given]], list[Any]]:
        """By key, the results in their order; and the late events."""
        results: dict[str, list[Given]] = {}
        late: list[Any] = []
        encode = key_codec_for(str).encode
        for partition in range(self.partitions):
            by_input: list[dict[str, list[Arrival]]] = []
            for rank, topic in enumerate(self.topics):
                mine = [
                    one
                    for one in sent
                    if type(one) is topic.type and partition_of(encode(one.key), self.partitions) == partition
                ]
                found, too_late = oracle.in_time(
                    [(e.key, e.at, e) for e in mine], self.out_of_order[rank], rank
                )
                by_input.append(found)
                late += too_late
            for key in {key for found in by_input for key in found}:
                of_inputs = of_key([found.get(key, []) for found in by_input])
                results[key] = [Given(key, time, shown(*parts)) for time, *parts in of_inputs]
        return {key: some for key, some in results.items() if some}, late

    def run(self, random: Random, sent: list[Any], h: Harness) -> None:
        """Send the events, with commits and crashes in between, to the end of input."""
        at = 0
        topic_of = {one.type: one for one in self.topics}
        while at < len(sent):
            for one in sent[at : (at := at + random.choice([1, 1, 2, 5, 20]))]:
                h.send(topic_of[type(one)], one)
            if random.random() < 0.2:
                h.commit()
            if random.random() < 0.1:
                h.crash()
        h.end_of_input()

    def check(
        self,
        random: Random,
        sent: list[Any],
        of_key: Callable[[list[list[Arrival]]], list[Result]],
        *,
        ordered: bool = True,
        operators: tuple[str, ...] = ("j",),
    ) -> int:
        """Run it, and compare results, their order, late events and the state at the end. Returns the number of results."""
        expected, late = self.expected(sent, of_key)
        with Harness(self.app, partitions=self.partitions, checked=random.random() < 0.5) as h:
            self.run(random, sent, h)
            found: dict[str, list[Given]] = {}
            for one in h.emitted(self.given):
                found.setdefault(one.key, []).append(one)
            if not ordered:
                found, expected = (
                    {k: sorted(some, key=repr) for k, some in each.items()} for each in (found, expected)
                )
            for key in sorted(found.keys() | expected.keys()):
                for number, (one, other) in enumerate(zip_longest(found.get(key, ()), expected.get(key, ()))):
                    assert one == other, f"result {number} of {key}"
            if self.routes:
                assert Counter(repr(one) for each in self.late for one in h.emitted(each)) == Counter(
                    map(repr, late)
                )
            assert h.dropped == (0 if self.routes else len(late))
            for name in operators:
                actor: Any = self.app.actors[name]
                assert h.keys(actor) == [], h.state(actor, h.keys(actor)[0])
            h.replay()
        return sum(map(len, expected.values()))


def parts_of(result: Any) -> tuple[Any, ...]:
    """The events of a result, of pairs of pairs as well."""
    if isinstance(result, tr.Gathered):
        return (*result.parts, result.repeated)
    return (*parts_of(result.left), *parts_of(result.right)) if isinstance(result, tr.Pair) else (result,)


def shown(*parts: Any) -> str:
    return " ".join(f"{type(one).__name__}{one.n}" if hasattr(one, "n") else repr(one) for one in parts)


def history(random: Random, count: int, types: tuple[type[Any], ...], *, hot: bool = False) -> list[Any]:
    """Events of few keys: bursts and pauses, out of order, some far behind, with equal times and before 1970."""
    now = random.choice([BEGIN_MS, BEGIN_MS, 86_400_000_000, -500])
    disorder_ms = random.choice([0, 30, 30, 200])
    found: list[Any] = []
    for n in range(count):
        now += random.choice([0, 0, 1] if hot else [0, 1, 1, 3, 10, random.randrange(200)])
        behind = random.randrange(disorder_ms + 1) if random.random() < 0.9 else random.randrange(300)
        found.append(random.choice(types)(f"k{0 if hot else random.randrange(3)}", now - behind, n))
    return found


def bounds(random: Random) -> tuple[int, int]:
    drawn = sorted(random.choice([-200, -30, -5, -1, 0, 0, 1, 5, 30, 200]) for _ in range(2))
    return drawn[0], drawn[1]
