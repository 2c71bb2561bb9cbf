"""What the operators of the library refuse: what has no meaning, no effect or wrong results, and state of another meaning."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.errors import DefinitionError


class Event(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    id: str = ""
    number: int = 0
    real: float = 0.0
    either: int | str = 0

    def __post_init__(self) -> None: ...


class Other(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    user: str = ""


class Changing(msgspec.Struct, tr.Keyed[str]):
    """Another handler of it may change it in place."""

    key: tr.Key[str]
    at: tr.EventTime[int]
    number: int = 0


class Holding(msgspec.Struct, tr.Keyed[str], frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    number: int = 0
    names: tuple[dict[str, int], ...] = ()


class Span(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    start: int


class Result(msgspec.Struct, frozen=True):
    key: str
    start: int
    end: int
    value: int
    kind: str = ""


class Shop(msgspec.Struct, frozen=True):
    shop: str
    region: str
    start: int
    kind: str


class Parts(msgspec.Struct, frozen=True):
    shop: str
    region: str
    at: tr.EventTime[int]


class Named(msgspec.Struct, frozen=True):
    shop: str
    till: str


class Tally(msgspec.Struct):
    number: int = 0


class Kind(Enum):
    FINAL = "final"


class NoMerge(agg.Aggregate[Event, int, int]):
    def start(self) -> int:
        return 0

    def add(self, acc: int, event: Event, time_ms: int) -> int:
        return acc + 1

    def result(self, acc: int) -> int:
        return acc


class Times(agg.Aggregate[Event, tuple[int | list[int], ...], int]):
    """Its accumulators can be changed in place."""

    def start(self) -> tuple[int | list[int], ...]:
        return ()

    def result(self, acc: tuple[int | list[int], ...]) -> int:
        return len(acc)


class Last(agg.Aggregate[Any, Changing | None, int]):
    def start(self) -> Changing | None:
        return None

    def result(self, acc: Changing | None) -> int:
        return 0 if acc is None else acc.number


def tallied(acc: Tally, event: Event) -> Tally:
    acc.number += 1
    return acc


def number_of(event: Any) -> int:
    return event.number  # type: ignore[no-any-return]


def id_of(event: Event) -> str:
    return event.id


class Declared:
    """An app with topics ``a`` and ``b``, and operators of which each case says what differs."""

    def __init__(self, event: Any = Event) -> None:
        self.app: Any = tr.App("refused", partitions=1)
        self.a, self.b = self.app.topic("a", event), self.app.topic("b", Other)
        self.dropping = self.app.topic("dropping", Event, late="drop")
        self.shared = self.app.topic("shared", Other, broadcast=True)
        self.latest = self.app.table("latest", Event)
        self.early = self.app.window("early", self.b, windows.tumbling(9), agg.count(), early=5)
        self.spans = self.app.topic("spans", Span)
        corrected = self.app.topic("corrected", Result, key="key")
        self.corrected = self.app.window(
            "c", self.b, windows.tumbling(9), agg.count(), lateness=5, into=corrected
        )

    def window(self, which: Any = None, aggregate: Any = None, **options: Any) -> None:
        chosen = windows.tumbling(9) if which is None else which
        self.app.window("o", self.a, chosen, agg.count() if aggregate is None else aggregate, **options)

    def field(self, **options: Any) -> None:
        tr.windowed(windows.tumbling(9), agg.count(), **options)

    def over(self, of: Any, **options: Any) -> None:
        self.app.window("o", of, windows.tumbling(9), agg.count(), **options)

    def ids(self) -> tr.Topic[Any, Any]:
        """A topic whose key is a field of the events, which is not their key."""
        return self.app.topic("ids", msgspec.defstruct("Ids", [("id", tr.Key[str])]))  # type: ignore[no-any-return]  # of an Any

    def dedupe(self, **options: Any) -> None:
        self.app.dedupe("o", self.a, **{"within": "1s", **options})

    def join(self, *inputs: Any, **options: Any) -> Any:
        return self.app.join("o", *(inputs or (self.a, self.b)), **{"within": "1s", **options})

    def to(self, **fields: Any) -> tr.Topic[Any, Any]:
        """A topic of these fields, and a key."""
        named = {"key": tr.Key[str], **fields}
        return self.app.topic("to", msgspec.defstruct("To", [*named.items()]))  # type: ignore[no-any-return]  # of an Any

    def filled(self, aggregate: Any, declared: Any, **options: Any) -> None:
        """A window whose value fills a field of this type."""
        self.window(aggregate=aggregate, into=self.to(value=declared, kind=Kind), **options)

    def joined(self, how: str = "inner", **fields: Any) -> None:
        self.join(within=5, how=how, into=self.to(**fields))

    def table(self, key: Any, **options: Any) -> None:
        self.window(into=self.app.table("results", Result, key=key), **options)

    def of_parts(self, some: tuple[str, ...], others: tuple[str, ...]) -> Any:
        """A join of topics with these keys."""
        topics = [self.app.topic(name, Parts, key=key) for name, key in (("some", some), ("others", others))]
        return self.join(*topics)

    def into_parts(self, key: tuple[str, ...], into: tuple[str, ...], *, by_stream: bool = False) -> None:
        some: Any = self.app.topic("some", Parts, key=key)
        some = self.app.dedupe("d", some, within=9, by="at") if by_stream else some
        self.app.window(
            "o", some, windows.tumbling(9), agg.latest(Parts), into=self.app.topic("to", Named, key=into)
        )

    def shops(self, *key: str) -> None:
        self.window(into=self.app.table("shops", Shop, key=key))


Case = tuple[Callable[[Declared], Any], str]
COUNTS_AGAIN = "takes the table 'latest': each new value of a key would count"
EMPTY: dict[str, Any] = {"fill": None, "fill_windows": 1}
NO_SUCH = "no option 'latenes'. Did you mean 'lateness'"

WINDOWS: list[Case] = [
    (lambda d: windows.tumbling(0), "zero"),
    (lambda d: windows.tumbling("-1h"), "is not a duration"),
    (lambda d: windows.tumbling("200000d"), "longer than"),
    (lambda d: windows.tumbling("1h", offset="1h"), "not below its size"),
    (lambda d: windows.sliding("1h", every="2h"), "longer than its size"),
    (lambda d: windows.sliding("1d", every="1s"), "86,400 accumulators"),
    (lambda d: windows.sessions(0), "zero"),
    (lambda d: windows.sessions("1h", at_most="1m"), "shorter than the gap"),
    (lambda d: windows.count(0), "0 events"),
    (lambda d: windows.daily(zone="Mars/Base"), "zone='Mars/Base'"),
    (lambda d: agg.collect(Event, limit=0), "limit=0"),
    (lambda d: d.window("1h"), "which are no windows"),
    (lambda d: d.window(aggregate=len), "which is no aggregate"),
    (lambda d: d.window(early=0), "early=0"),
    (lambda d: d.window(early="10s"), "early='10s'"),
    (lambda d: d.window(lateness=0), "zero"),
    (lambda d: d.window(aggregate=agg.collect(Event), lateness=5), "lateness=, and collect.* the order of"),
    (lambda d: d.window(windows.sessions(5, at_most=9), lateness=5), "in the order of event time"),
    (lambda d: d.window(windows.sliding(9, every=3), early=5), "early results of sliding"),
    (lambda d: d.window(windows.sliding(9, every=3), NoMerge()), "needs to merge"),
    (lambda d: d.window(windows.sessions(9), NoMerge()), "needs to merge"),
    (lambda d: d.window(windows.global_()), "never end"),
    (lambda d: d.window(windows.count(3), lateness=5), "without a time"),
    (lambda d: d.window(windows.sessions(3), fill=0), "fill="),
    (lambda d: d.window(fill_windows=3), "fill_windows=3"),
    (lambda d: d.window(fill=0, lateness=4), "fill="),
    (lambda d: d.window(latenes="1d"), NO_SUCH),
    (lambda d: d.field(latenes="1d"), NO_SUCH),
    (lambda d: d.field(late=d.a), "no option 'late'. add returns False"),
    (lambda d: d.field(into=d.a), "no option 'into'. add returns False"),
    (lambda d: d.window(late=d.b), "its events are Event"),
    (lambda d: d.window(late=d.a), "'a', its own input"),
    (lambda d: d.over(d.dropping, lateness=5), "takes them away"),
    (lambda d: d.over(d.early), "early results: they would count again"),
    (lambda d: d.over(d.corrected), "corrections: they would count again"),
    (lambda d: agg.reduce(tallied, Tally()), "Tally, which can change in place"),
    (lambda d: agg.reduce(lambda acc, _: acc, []), "type list, which can change in place"),
    (lambda d: d.window(aggregate=Times()), r"Times has the type .*list\[int\].*, which can"),
    (
        lambda d: d.window(aggregate=agg.several(times=Times())),
        r"Times has the type .*list\[int\].*, which can",
    ),
    (lambda d: tr.windowed(windows.tumbling(9), Times()), r"Times has the type .*list\[int\].*, which can"),
    (lambda d: Declared(Changing).window(aggregate=Last()), "Changing is not frozen"),
]

OTHERS: list[Case] = [
    (lambda d: d.dedupe(within=0), "within=0, which is zero"),
    (lambda d: d.dedupe(within="-1s"), "wrong within"),
    (lambda d: d.dedupe(within="1y"), "wrong within"),
    (lambda d: d.dedupe(within=200_000 * 86_400_000), "longer than 100000d"),
    (lambda d: d.dedupe(lateness=-1), "wrong lateness"),
    (lambda d: d.dedupe(by="nothing"), "no field 'nothing'"),
    (lambda d: d.dedupe(by=()), "tuple of 0 fields"),
    (lambda d: d.dedupe(by=5), "by=5 is not a field"),
    (lambda d: d.dedupe(by=None), "by=None is not a field"),
    (lambda d: d.dedupe(by="either"), "no single type"),
    (lambda d: d.dedupe(by="real"), "float cannot be the key of a map"),
    (lambda d: d.dedupe(by=lambda e: e.id), "without an annotated return type"),
    (lambda d: d.dedupe(by=number_of, by_type=str), "by_type is str, but by=.* is int"),
    (lambda d: d.dedupe(by="id", by_type=int), "by_type is int, but by='id' is str"),
    (lambda d: d.dedupe(order="sideways"), "order='sideways'"),
    (lambda d: d.dedupe(late=d.b), "Give a topic of the same type"),
    (lambda d: d.dedupe(late=d.a), "'a', its own input"),
    (lambda d: d.app.dedupe("o", d.b, within="1h"), r"by='id' .* The default is by=\"id\"."),
    (lambda d: d.app.dedupe("o", d.dropping, within="1s", late=d.a), "takes them away"),
    (lambda d: d.app.dedupe("a", d.a, within="1s"), "another topic or stream has the name"),
    (lambda d: d.app.limit("o", d.a, 0, per="1m"), "n=0"),
    (lambda d: d.app.limit("o", d.a, True, per="1m"), "n=True"),
    (lambda d: d.app.limit("o", d.a, 1, per=0), "per=0, which is zero"),
    (lambda d: d.app.limit("o", d.a, 1, per="soon"), "wrong per"),
    (lambda d: d.app.limit("o", d.a, 1, per=1, rest=d.b), "has rest="),
    (lambda d: d.app.limit("o", d.dropping, 1, per=1, late=d.a), "takes them away"),
    (lambda d: d.app.top("o", d.a, 0, by="id", of="real"), "n=0"),
    (lambda d: d.app.top("o", d.a, 1.0, by="id", of="real"), "n=1.0"),
    (lambda d: d.app.top("o", d.a, 1, by="nothing", of="real"), "no field 'nothing'"),
    (lambda d: d.app.top("o", d.a, 1, by="real", of="real"), "float cannot be the key of a map"),
    (lambda d: d.app.top("o", d.a, 1, by="id", of="nothing"), "no field 'nothing'"),
    (lambda d: d.app.top("o", d.a, 1, by="id", of="key"), "adds of='key', which is str"),
    (lambda d: d.app.top("o", d.a, 1, by="id", of=None), "of=None is not a field"),
    (lambda d: d.app.top("o", d.a, 1, by=lambda e: e.id, of="real"), "without an annotated return type"),
    (lambda d: d.app.sample("o", d.a, by="id", fraction=0), "fraction=0"),
    (lambda d: d.app.sample("o", d.a, by="id", fraction=1.5), "fraction=1.5"),
    (lambda d: d.app.sample("o", d.a, by="id", fraction=float("nan")), "fraction=nan"),
    (lambda d: d.app.sample("o", d.a, by="id", fraction="10%"), "fraction='10%'"),
    (lambda d: d.app.sample("o", d.a, by="nothing", fraction=0.5), "no field 'nothing'"),
    (lambda d: d.app.lookup("o", d.a, d.b, by="id"), "looks up in 'b', which is not a broadcast topic"),
    (lambda d: d.app.lookup("o", d.a, d.shared, by="number"), "the key of 'shared' is str"),
    (lambda d: [d.app.dedupe("o", d.shared, by="user", within="1s"), d.app.plan()], "which is broadcast"),
    (lambda d: d.over(d.latest), COUNTS_AGAIN),
    (lambda d: d.app.limit("o", d.latest, 1, per="1h"), COUNTS_AGAIN),
    (lambda d: d.app.dedupe("o", d.latest, within="1h"), COUNTS_AGAIN),
    (lambda d: d.app.top("o", d.latest, 1, by="id", of="at"), COUNTS_AGAIN),
]

JOINS: list[Case] = [
    (lambda d: d.join(within=("2s", "1s")), "within"),
    (lambda d: d.join(within="0s"), "within"),
    (lambda d: d.join(within="-5s"), "within"),
    (lambda d: d.join(within=("1s",)), "within"),
    (lambda d: d.join(within="1 parsec"), "not a duration"),
    (lambda d: d.join(how="outer"), "outer"),
    (lambda d: d.join(d.a, d.a), "twice"),
    (lambda d: d.join(d.a, d.app.topic("slow", Other, watermark=False)), "watermark=False"),
    (lambda d: d.join(d.a, d.shared), "broadcast|keys"),
    (lambda d: d.join(d.a, d.latest), "is a table"),
    (lambda d: d.join(d.a, d.app.topic("n", Event, key="number", key_type=int)), "keys of type int"),
    (lambda d: d.join(d.early, d.a), "early results: they would count again"),
    (lambda d: d.join(d.corrected, d.a), "corrections: they would count again"),
    (lambda d: d.join(late=d.a), "late="),
    (lambda d: d.join(d.a, d.app.topic("c2", Event), late=d.a), "'a', its own input"),
    (lambda d: d.join(late=(d.a,)), "2 inputs"),
    (lambda d: d.join(d.a, d.dropping, late=(None, d.app.topic("e", Event))), "takes them away"),
    (lambda d: d.app.window_join("o", d.a, d.b, windows.sliding("1h", every="10m")), "the operator 'o'"),
    (lambda d: d.app.asof("o", d.a, d.b, keep="0s"), "the operator 'o'"),
    (lambda d: d.app.gather("o", d.a, within="1s"), "the operator 'o'"),
    (lambda d: d.app.gather("o", d.a, d.b, within="0s"), "the operator 'o'"),
    (lambda d: [d.join(within=("-1s", "2s")), d.join()], "the name"),
]

INTO: list[Case] = [
    (lambda d: d.joined(nothing=int), "'nothing' .* nothing has this name"),
    (lambda d: d.joined(at=int), "'at' .* two values for it, that of Event, and that of Other"),
    (lambda d: d.joined(user=int), "'user' .* it is int, and that of Other is str"),
    (lambda d: d.joined(user=datetime), "'user' .* it is datetime, and that of Other is str"),
    (lambda d: d.joined(number=str | None), r"'number' .* it is str \| None, and that of Event is int"),
    (lambda d: d.joined(time=tr.EventTime[datetime]), "'time' .* it is .*datetime.*, .*event time is int"),
    (lambda d: d.joined(key=tr.Key[int]), "'key' .* it is .*int.*, and that of the key is str"),
    (lambda d: d.joined("left", user=str), r"'user' .* it is str, and that of Other is str \| None"),
    (lambda d: d.joined("full", user=str), r"'user' .* it is str, and that of Other is str \| None"),
    (lambda d: d.join(into=d.b), "'b' as its input and as into="),
    (lambda d: d.join(into=d.ids()), "'id' .* two values for it, .*the key, and that of Event"),
    (lambda d: d.window(aggregate=agg.latest(Event), into=d.ids()), r"'id' .* two values"),
    (
        lambda d: d.window(aggregate=agg.several(start=agg.count()), into=d.spans),
        "cannot fill the field 'start' .* two values",
    ),
    (lambda d: d.window(into=d.to(celsius=float)), "cannot fill the field 'celsius'"),
    (lambda d: d.filled(agg.mean(number_of), int), "'value' .*it is int, and that of the result is float"),
    (lambda d: d.filled(agg.count(), str), "'value' .*it is str, and that of the result is int"),
    (lambda d: d.filled(agg.count(), datetime), "'value' .*it is datetime, and that of the result is int"),
    (lambda d: d.filled(agg.count(), list[int]), "'value' .*that of the result is int"),
    (lambda d: d.filled(agg.collect(Event), str), "'value' .*that of the result is tuple"),
    (lambda d: d.filled(agg.total(number_of), str), r"'value' .*that of the result is int \| float"),
    (lambda d: d.filled(agg.max(id_of), bytes), "'value' .*it is bytes"),
    (lambda d: d.filled(agg.latest(Event), int), "'value' .*that of the result is Event"),
    (
        lambda d: d.filled(agg.mean(number_of), float, **EMPTY),
        "it is float, and that of the result is float . None",
    ),
    (
        lambda d: d.filled(agg.count(), int, **EMPTY | {"fill": 0.5}),
        "it is int, and that of the result is int . float",
    ),
    (
        lambda d: d.window(aggregate=agg.several(n=agg.count()), into=d.to(n=int), **EMPTY),
        "'n' .* that of Several is int . None",
    ),
    (lambda d: d.shops("shop", "region"), "cannot fill shop, region in the topic 'shops'.*type str"),
    (lambda d: d.shops("shop", "region", "start"), "cannot fill shop, region in the topic 'shops'.*type str"),
    (
        lambda d: d.into_parts(("region", "shop"), ("shop", "till")),
        "cannot fill shop, till .* str., region, shop",
    ),
    (lambda d: d.into_parts(("region", "shop"), ("shop", "till"), by_stream=True), "cannot fill shop, till"),
    (
        lambda d: d.of_parts(("region", "shop"), ("shop", "region")),
        "'some' with the key region, shop and 'others' with shop, region",
    ),
    *[
        (
            lambda d, key=key, more=more: d.table(key, **more),
            "replaces that of any window.*add start to the key",
        )
        for key in ("key", ("key", "value"))
        for more in ({"lateness": 50}, {"early": 2}, {"early_clock": "1s"})
    ],
]


@pytest.mark.parametrize(("declare", "said"), [*WINDOWS, *OTHERS, *JOINS, *INTO])
def test_what_cannot_be_meant_is_refused_where_it_is_declared(
    declare: Callable[[Declared], Any], said: str
) -> None:
    declared = Declared()
    with pytest.raises(DefinitionError, match=said):
        declare(declared)


@pytest.mark.parametrize(
    "declare",
    [
        lambda d: d.joined("right", user=str, id=str | None),
        lambda d: d.filled(agg.count(), float),
        lambda d: d.filled(agg.count(), Annotated[int, msgspec.Meta(ge=0)]),
        lambda d: d.filled(agg.count(), int | None),
        lambda d: d.filled(agg.count(), Any),
        lambda d: d.filled(agg.total(number_of), int),  # its values are perhaps only ints
        lambda d: d.filled(agg.max(id_of), str),
        lambda d: d.filled(agg.top(2, by=id_of, of=number_of), list[tuple[str, int]]),
        lambda d: d.filled(agg.latest(Event), Event),
        lambda d: d.filled(agg.mean(number_of), float | None, **EMPTY),
        lambda d: d.filled(agg.mean(number_of), float, **EMPTY | {"fill": 0}),
        lambda d: d.window(aggregate=agg.several(n=agg.count()), into=d.to(n=int | None), **EMPTY),
        lambda d: d.table("key"),
        lambda d: d.window(into=d.app.topic("results", Result, key="key"), lateness=50),
        lambda d: d.window(windows.global_(), early=1, into=d.app.table("all", Result, key="key")),
        lambda d: d.app.lookup("o", d.latest, d.shared, by="id"),
        lambda d: d.app.sample("o", d.latest, by="id", fraction=0.5),
    ],
)
def test_what_looks_alike_and_can_be_meant_is_not_refused(declare: Callable[[Declared], Any]) -> None:
    declared = Declared()
    declare(declared)
    declared.app.plan()


KEEPING: dict[str, Callable[[Declared], Any]] = {
    "latest": lambda d: d.window(aggregate=agg.latest(d.a.type)),
    "first": lambda d: d.window(windows.count(9), agg.first(d.a.type)),
    "min_by": lambda d: d.window(windows.sessions(9), agg.min_by(d.a.type, number_of)),
    "max_by": lambda d: d.window(windows.count(9), agg.max_by(d.a.type, number_of)),
    "collect": lambda d: d.window(aggregate=agg.collect(d.a.type)),
    "several": lambda d: d.window(aggregate=agg.several(n=agg.count(), last=agg.latest(d.a.type))),
    "reduce": lambda d: d.window(aggregate=agg.reduce(lambda acc, one: (*acc, one), d.a.type("", 0))),
    "field": lambda d: tr.windowed(windows.tumbling(9), agg.latest(d.a.type)),
    "join": lambda d: d.join(within=9),
    "left of a join": lambda d: d.join(d.b, d.a, within=9, how="left"),
    "window join": lambda d: d.app.window_join("o", d.a, d.b, windows.tumbling(9)),
    "asof": lambda d: d.app.asof("o", d.a, d.b, keep=9),
    "gather": lambda d: d.app.gather("o", d.a, d.b, within=9),
}


@pytest.mark.parametrize("event", [Changing, Holding])
@pytest.mark.parametrize("name", KEEPING)
def test_an_operator_does_not_keep_events_that_another_handler_can_change(name: str, event: Any) -> None:
    with pytest.raises(DefinitionError, match=r"which can change in place.*frozen=True, and tuples"):
        KEEPING[name](Declared(event))
    KEEPING[name](Declared())


def test_a_handler_of_results_of_another_type_is_refused() -> None:
    d = Declared()
    hourly = d.app.window("hourly", d.a, windows.tumbling(9), agg.count())
    with pytest.raises(DefinitionError, match=r"'hourly' holds tr.Windowed\[str, int\]"):

        @d.app.process(hourly)  # type: ignore[untyped-decorator]  # of an Any
        def take(window: tr.Windowed[str, list[str]], ctx: tr.Context[str]) -> None: ...


def test_the_results_of_a_field_go_to_a_method_of_their_type() -> None:
    d = Declared()
    with pytest.raises(DefinitionError, match=r"Room.hour takes Event, but gets tr.Windowed\[Any, int\]"):

        class Room(tr.Actor):
            hours: tr.Windows[Event, int] = tr.windowed(windows.tumbling(9), agg.count())

            @tr.process(d.a)
            def read(self, event: Event, ctx: tr.Context[str]) -> None:
                self.hours.add(event)

            @tr.on_window(hours)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            def hour(self, window: Event, ctx: tr.Context[str]) -> None: ...

        d.app.actor(Room)
        d.app.plan()
