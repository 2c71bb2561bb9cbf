"""One app with operators of all kinds, chained by streams and by topics, and the same in plain Python.

The event types and most of the oracle are those of the fifteen programs.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

import msgspec

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.records import Output
from tailrace.log import Log
from tests.docs import program_oracles as oracle
from tests.runtime.bounded_run import read_all

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
BEGIN_MS = 1_767_225_600_000
DISORDER_MS = 2 * MINUTE_MS
PARTITIONS = 3


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    room: tr.Key[str]
    at: tr.EventTime[int]
    celsius: float


class Mean(msgspec.Struct, tr.Keyed[str], frozen=True):
    room: tr.Key[str]
    start: int
    end: int
    value: float


class Floor(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The mean of a room, keyed by its floor."""

    floor: tr.Key[str]
    at: tr.EventTime[int]
    value: float


class Sale(msgspec.Struct, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    at: tr.EventTime[int]
    id: str
    product: str
    cents: int


class Visit(msgspec.Struct, tr.Keyed[str], frozen=True):
    user: tr.Key[str]
    start: int
    end: int
    value: int


class Best(msgspec.Struct, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    start: int
    value: list[tuple[str, int]]


class Impression(msgspec.Struct, tr.Keyed[str], frozen=True):
    ad: tr.Key[str]
    at: tr.EventTime[int]
    campaign: str


class AdClick(msgspec.Struct, tr.Keyed[str], frozen=True):
    ad: tr.Key[str]
    at: tr.EventTime[int]
    user: str


class Shown(msgspec.Struct, tr.Keyed[str], frozen=True):
    ad: tr.Key[str]
    campaign: str
    user: str | None


class Worth(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A click with the impression that was the last of its ad then."""

    ad: tr.Key[str]
    user: str
    campaign: str | None


class Together(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Impression and click of one hour."""

    ad: tr.Key[str]
    campaign: str
    user: str


class Case(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The first impression and click of a case of 30 minutes."""

    ad: tr.Key[str]
    campaign: str | None
    user: str | None


APP = "tests.library.everything:app"
app = tr.App("everything", partitions=PARTITIONS)
readings = app.topic("readings", Reading, out_of_order=DISORDER_MS)
sales = app.topic("sales", Sale, out_of_order=DISORDER_MS)
impressions = app.topic("impressions", Impression, out_of_order=DISORDER_MS)
clicks = app.topic("clicks", AdClick, out_of_order=DISORDER_MS)
hourly = app.topic("hourly", Mean)
moving = app.topic("moving", Mean)
warmest = app.topic("warmest", Mean)
floors = app.topic("floors", Floor)
floor_hours = app.topic("floor-hours", Mean)
visits = app.topic("visits", Visit)
bests = app.topic("bests", Best)
shown = app.topic("shown", Shown)
worths = app.topic("worths", Worth)
together = app.topic("together", Together)
cases = app.topic("cases", Case)

hours = app.window("hours", readings, windows.tumbling("1h"), agg.mean(lambda r: r.celsius))
slid = app.window(
    "slid", readings, windows.sliding("1h", every="15m"), agg.mean(lambda r: r.celsius), into=moving
)
days = app.window("days", hours, windows.daily(zone="UTC"), agg.max(lambda hour: hour.value), into=warmest)
by_floor = app.window(
    "by-floor", floors, windows.tumbling("1h"), agg.mean(lambda one: one.value), into=floor_hours
)
unique = app.dedupe("unique", sales, by="id", within="1d")
best = app.window(
    "best",
    unique,
    windows.tumbling("1h"),
    agg.top(2, by=lambda s: s.product, of=lambda s: s.cents),
    into=bests,
)
bought = app.window("bought", unique, windows.sessions("10m"), agg.count(), into=visits)
clicked = app.join("clicked", impressions, clicks, within=("0s", "10m"), how="left")

last_shown = app.asof("last-shown", clicks, impressions, keep="1h")
in_hour = app.window_join("in-hour", impressions, clicks, windows.tumbling("1h"))
gathered = app.gather("gathered", impressions, clicks, within="30m")


@app.process(last_shown)
def publish_worth(pair: tr.Pair[AdClick, Impression | None], ctx: tr.Context[str]) -> None:
    impression = pair.right
    ctx.emit(worths, Worth(ctx.key, pair.left.user, None if impression is None else impression.campaign))


@app.process(in_hour)
def publish_together(pair: tr.Pair[Impression, AdClick], ctx: tr.Context[str]) -> None:
    ctx.emit(together, Together(ctx.key, pair.left.campaign, pair.right.user))


@app.process(gathered)
def publish_case(case: tr.Gathered[tuple[Impression | None, AdClick | None]], ctx: tr.Context[str]) -> None:
    impression, click = case.parts
    campaign = None if impression is None else impression.campaign
    ctx.emit(cases, Case(ctx.key, campaign, None if click is None else click.user))


@app.process(hours)
def publish_hour(hour: tr.Windowed[str, float], ctx: tr.Context[str]) -> None:
    ctx.emit(hourly, Mean(hour.key, hour.start, hour.end, hour.value))
    ctx.emit(floors, Floor(hour.key[:1], ctx.event_time, hour.value))


@app.process(clicked)
def publish_shown(pair: tr.Pair[Impression, AdClick | None], ctx: tr.Context[str]) -> None:
    click = pair.right
    ctx.emit(shown, Shown(ctx.key, pair.left.campaign, None if click is None else click.user))


OUTPUTS = hourly, moving, warmest, floor_hours, visits, bests, shown, worths, together, cases
History: TypeAlias = list[tuple[tr.Topic[Any, Any], Any]]


def history(seed: int, count: int) -> History:
    """Events of some days, out of order by less than is declared."""
    random = Random(seed)
    found: list[tuple[int, tr.Topic[Any, Any], Any]] = []
    at = BEGIN_MS
    for number in range(count):
        at += random.choice((1_000, 30_000, 90_000, 20 * MINUTE_MS) if number % 40 else (9 * HOUR_MS,))
        early = at - random.randrange(DISORDER_MS)
        shop = random.choice("st")
        event: Any
        match random.randrange(4):
            case 0:
                event = readings, Reading(random.choice(("1a", "1b", "2a")), early, random.uniform(-9, 40))
            case 1:
                bought_at = early, random.randrange(900)
                event = (
                    sales,
                    Sale(
                        shop,
                        bought_at[0],
                        f"{shop}{random.randrange(40)}",
                        random.choice("xyz"),
                        bought_at[1],
                    ),
                )
            case 2:
                event = impressions, Impression(random.choice("abc"), early, f"c{number}")
            case _:
                event = clicks, AdClick(random.choice("abc"), early, f"u{number}")
        found.append((at, *event))
    return [(topic, event) for _, topic, event in found]


def records(events: History) -> list[Output]:
    return [Output(topic.name, topic.encode_key(one), topic.encode(one), one.at) for topic, one in events]


def expected(events: History) -> dict[str, list[Any]]:
    """What every topic of ``OUTPUTS`` must hold, sorted. The order of one key in an input is that of ``events``."""
    types = sys.modules[__name__]
    sent: dict[str, list[Any]] = defaultdict(list)
    for topic, event in events:
        sent[topic.name].append(event)
    of_hours = oracle.p01_hourly(sent, types)["means"]
    of_floors = [Floor(one.room[:1], one.end - 1, one.value) for one in of_hours]
    once = oracle.p07_once(sent, types)["unique-sales"]
    of_buyers = [msgspec.structs.replace(one) for one in once]
    found: dict[str, list[Any]] = {
        "hourly": of_hours,
        "moving": oracle.p02_moving(sent, types)["means"],
        "warmest": oracle.p14_warmest(sent, types)["means"],
        "floor-hours": [
            Mean(floor, start, start + HOUR_MS, oracle.mean(one.value for one in some))
            for (floor, start), some in oracle.grouped(
                of_floors, lambda one: (one.floor, oracle.start_of(one.at, HOUR_MS))
            ).items()
        ],
        "visits": _visits(of_buyers),
        "bests": oracle.p06_best({"sales": once}, types)["bests"],
        "shown": oracle.p08_ads(sent, types)["shown"],
        "worths": _worths(sent),
        "together": [
            Together(one.ad, one.campaign, click.user)
            for one in sent["impressions"]
            for click in sent["clicks"]
            if one.ad == click.ad and one.at // HOUR_MS == click.at // HOUR_MS
        ],
        "cases": _cases(sent),
    }
    return {name: sorted(some, key=repr) for name, some in found.items()}


def _visits(sold: Sequence[Sale]) -> list[Visit]:
    found = []
    for shop, some in oracle.grouped(sold, lambda one: one.shop).items():
        groups: list[list[int]] = []
        for at in sorted(one.at for one in some):
            if groups and at - groups[-1][-1] <= 10 * MINUTE_MS:
                groups[-1].append(at)
            else:
                groups.append([at])
        found += [Visit(shop, times[0], times[-1], len(times)) for times in groups]
    return found


def _worths(sent: dict[str, list[Any]]) -> list[Worth]:
    found = []
    for click in sent["clicks"]:
        before = [
            (one.at, number, one.campaign)
            for number, one in enumerate(sent["impressions"])
            if one.ad == click.ad and click.at - HOUR_MS <= one.at <= click.at
        ]
        found.append(Worth(click.ad, click.user, max(before)[2] if before else None))
    return found


def _cases(sent: dict[str, list[Any]]) -> list[Case]:
    """Impressions come before clicks of the same instant, as their topic is declared first."""
    found = []
    parts = [
        (one.at, kind, number, one)
        for kind, name in enumerate(("impressions", "clicks"))
        for number, one in enumerate(sent[name])
    ]
    for ad, some in oracle.grouped(sorted(parts, key=lambda part: part[:3]), lambda part: part[3].ad).items():
        case: dict[int, Any] = {}
        since = 0
        for at, kind, _, one in [*some, (1 << 60, 2, 0, None)]:
            if case and at > since + 30 * MINUTE_MS:
                found.append(_case(ad, case))
                case = {}
            since = since if case else at
            case.setdefault(kind, one)
            if len(case) == 2:
                found.append(_case(ad, case))
                case = {}
    return found


def _case(ad: str, case: dict[int, Any]) -> Case:
    return Case(ad, case[0].campaign if 0 in case else None, case[1].user if 1 in case else None)


def found(log: Log) -> dict[str, list[Any]]:
    """What the topics hold, sorted."""
    return {one.name: sorted(read_all(log, one.name, one.type), key=repr) for one in OUTPUTS}
