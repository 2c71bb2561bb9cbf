"""Joins against the oracle: random bounds and histories, equal times, hot keys, commits, crashes, several partitions, chained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from random import Random
from typing import Any

import msgspec
import pytest

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


class C(msgspec.Struct, tr.Keyed[str]):
    """Not frozen, and with a list: it has no fixed point."""

    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int
    tags: list[str] = msgspec.field(default_factory=list)


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
    if isinstance(result, tr.Pair):
        left: Any = result.left
        return (*parts_of(left), result.right) if isinstance(left, tr.Pair) else (left, result.right)
    return (*result.parts, result.repeated)


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


@pytest.mark.one_seed_in(2)
def test_an_interval_join_gives_all_pairs_within_the_bounds_once_and_in_order(seeds: range) -> None:
    given = 0
    for seed in seeds:
        random = Random(seed)
        (first, last), how = bounds(random), random.choice(HOWS)
        order = random.choice(
            [(0, 1), (1, 0)]
        )  # the side that is declared first is the left or the right one

        def join(world: World) -> tr.Stream[Any, str]:
            left, right = (world.topics[one] for one in order)  # noqa: B023  # it is called at once
            options: Any = {"how": how, **world.options(*order)}  # noqa: B023
            return world.app.join("j", left, right, within=(first, last), **options)  # noqa: B023

        def of_key(by_input: list[list[Arrival]]) -> list[Result]:
            return oracle.interval(by_input[order[0]], by_input[order[1]], first, last, how)  # noqa: B023

        hot = random.random() < 0.2
        sent = history(random, random.choice([5, 30, 80, 150]), (A, B), hot=hot)
        try:
            given += World(random, join).check(random, sent, of_key)
        except BaseException as error:
            error.add_note(f"seed {seed}: {how} join from {first} to {last}, order {order}")
            raise
    assert given > len(seeds)


@pytest.mark.one_seed_in(4)
def test_a_join_behind_a_join_gives_what_both_definitions_say(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        (first, last), (first_2, last_2) = bounds(random), bounds(random)
        how, how_2 = random.choice(["inner", "left"]), random.choice(["inner", "left"])

        def join(world: World) -> tr.Stream[Any, str]:
            a, b, c = world.topics
            one: Any = {"how": how}  # noqa: B023
            two: Any = {"how": how_2}  # noqa: B023
            world.routes = False
            both = world.app.join("i", a, b, within=(first, last), **one)  # noqa: B023
            return world.app.join("j", both, c, within=(first_2, last_2), **two)  # noqa: B023

        def of_key(by_input: list[list[Arrival]]) -> list[Result]:
            both = oracle.interval(by_input[0], by_input[1], first, last, how)  # noqa: B023
            pairs = [Arrival(time, 0, place, pair) for place, (time, *pair) in enumerate(both)]
            found = oracle.interval(pairs, by_input[2], first_2, last_2, how_2)  # noqa: B023
            return [(time, *pair, right) for time, pair, right in found]

        sent = history(random, random.choice([5, 30, 60]), (A, B, C))
        try:
            world = World(random, join, 3)
            world.check(random, sent, of_key, ordered=False, operators=("i", "j"))
        except BaseException as error:
            error.add_note(f"seed {seed}: {how} {first} to {last}, then {how_2} {first_2} to {last_2}")
            raise


def test_no_schedule_changes_the_pairs() -> None:
    for seed in range(3):
        random = Random(seed)
        (first, last), how = bounds(random), random.choice(HOWS)

        def join(world: World) -> tr.Stream[Any, str]:
            options: Any = {"how": how, **world.options(0, 1)}  # noqa: B023  # it is called at once
            return world.app.join("j", *world.topics, within=(first, last), **options)  # noqa: B023

        world = World(random, join)
        with Harness(world.app, partitions=world.partitions) as h:
            world.run(random, history(random, 60, (A, B)), h)
            assert h.explore(schedules=15, idleness=False).equal


def test_one_event_may_have_thousands_of_partners_beyond_what_is_kept_in_a_field() -> None:
    app = tr.App("joins", partitions=1)
    a, b = app.topic("a", A), app.topic("b", B)
    given = app.topic("given", Given)

    @app.process(app.join("j", a, b, within="1s", how="full"))
    def publish(both: tr.Pair[A | None, B | None], ctx: tr.Context[str]) -> None:
        ctx.emit(given, Given(ctx.key, ctx.event_time, shown(both.left, both.right)))

    with Harness(app, checked=False) as h:
        h.send(a, *(A("k", BEGIN_MS + n // 10, n) for n in range(3_000)))
        h.send(b, B("k", BEGIN_MS + 500, 0), B("k", BEGIN_MS + 60_000, 1))
        h.commit()
        h.crash()
        h.end_of_input()
        assert [one.parts for one in h.emitted(given)] == [*(f"A{n} B0" for n in range(3_000)), "None B1"]
        actor: Any = app.actors["j"]
        assert h.keys(actor) == []


def test_what_cannot_be_joined_is_refused_when_it_is_declared() -> None:
    app = tr.App("joins")
    a, b = app.topic("a", A), app.topic("b", B)
    slow = app.topic("slow", B, watermark=False)
    numbers = app.topic("numbers", B, key="n", key_type=int)
    dropping = app.topic("dropping", B, late="drop")
    early = app.window("early", b, tr.windows.tumbling("1h"), tr.agg.count(), early=5)
    join: Any = app.join
    for inputs, options, said in (
        ((a, b), {"within": ("2s", "1s")}, "within"),
        ((a, b), {"within": "0s"}, "within"),
        ((a, b), {"within": "-5s"}, "within"),
        ((a, b), {"within": ("1s",)}, "within"),
        ((a, b), {"within": "1 parsec"}, "not a duration"),
        ((a, b), {"within": "1s", "how": "outer"}, "outer"),
        ((a, a), {"within": "1s"}, "twice"),
        ((a, slow), {"within": "1s"}, "watermark=False"),
        ((a, numbers), {"within": "1s"}, "keys of type int"),
        ((a, early), {"within": "1s"}, "early results"),
        ((a, b), {"within": "1s", "late": a}, "late="),
        ((a, b), {"within": "1s", "late": (a,)}, "2 inputs"),
        ((a, dropping), {"within": "1s", "late": (None, b)}, "takes them away"),
    ):
        with pytest.raises(tr.DefinitionError, match=said):
            join("j", *inputs, **options)
    join("j", a, b, within=("-1s", "2s"))
    with pytest.raises(tr.DefinitionError):
        join("j", a, b, within="1s")


def test_other_bounds_do_not_read_what_was_kept_for_these() -> None:
    def app_of(**options: Any) -> tr.App:
        app = tr.App("joins", partitions=1)
        app.join("j", app.topic("a", A), app.topic("b", B), **options)
        return app

    before = app_of(within=("0s", "10m"))
    with Harness(before) as h:
        h.send(before.topics["a"], A("k", BEGIN_MS, 1), A("k", BEGIN_MS + 5, 1))
        h.advance_watermark(BEGIN_MS + 5)
        snapshot = h.snapshot()
    Harness(app_of(within=("0s", "10m")), start=snapshot).close()
    for options in ({"within": ("0s", "11m")}, {"within": ("0s", "10m"), "how": "left"}):
        with pytest.raises(tr.TailraceError, match="join: inner, from 0ms to 10m"):
            Harness(app_of(**options), start=snapshot)
