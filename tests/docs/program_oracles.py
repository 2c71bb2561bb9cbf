"""What each program of docs/programs.md must emit: plain Python over all of its events.

An oracle gets the events of each topic, by its name and in the order in which they were sent, and the module of the event types. It returns
the events of each topic that the program writes, in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import fsum
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

Sent: TypeAlias = Mapping[str, list[Any]]
Given: TypeAlias = dict[str, list[Any]]
Oracle: TypeAlias = Callable[[Sent, Any], Given]
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def grouped(events: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for one in events:
        found[key(one)].append(one)
    return found


def mean(numbers: Iterable[float]) -> float:
    values = list(numbers)
    return fsum(values) / len(values)


def start_of(at: int, size: int, offset: int = 0) -> int:
    return at - (at - offset) % size


def p01_hourly(sent: Sent, types: Any) -> Given:
    hours = grouped(sent["readings"], lambda r: (r.room, start_of(r.at, HOUR_MS)))
    return {
        "means": [
            types.Mean(room, start, start + HOUR_MS, mean(r.celsius for r in some))
            for (room, start), some in hours.items()
        ]
    }


def p02_moving(sent: Sent, types: Any) -> Given:
    found = []
    for room, some in grouped(sent["readings"], lambda r: r.room).items():
        starts = {start_of(r.at, HOUR_MS // 4) - n * HOUR_MS // 4 for r in some for n in range(4)}
        for start in starts:
            inside = [r.celsius for r in some if start <= r.at < start + HOUR_MS]
            found.append(types.Mean(room, start, start + HOUR_MS, mean(inside)))
    return {"means": found}


def p03_visits(sent: Sent, types: Any) -> Given:
    found = []
    for user, some in grouped(sent["clicks"], lambda c: c.user).items():
        visits: list[list[int]] = []
        for at in sorted(c.at for c in some):
            if visits and at - visits[-1][-1] <= 30 * MINUTE_MS:
                visits[-1].append(at)
            else:
                visits.append([at])
        found += [types.Visit(user, times[0], times[-1], len(times)) for times in visits]
    return {"visits": found}


def p04_threes(sent: Sent, types: Any) -> Given:
    found = []
    for room, some in grouped(sent["readings"], lambda r: r.room).items():
        for three in zip(some[::3], some[1::3], some[2::3], strict=False):
            times = [r.at for r in three]
            found.append(types.Mean(room, min(times), max(times), mean(r.celsius for r in three)))
    return {"means": found}


def p05_revenue(sent: Sent, types: Any) -> Given:
    hours = grouped(sent["sales"], lambda s: (s.shop, start_of(s.at, HOUR_MS)))
    return {
        "revenues": [
            types.Revenue(shop, start, sum(s.cents for s in some), "final")
            for (shop, start), some in hours.items()
        ],
        "too-late": [],
    }


def p06_best(sent: Sent, types: Any) -> Given:
    found = []
    for (shop, start), some in grouped(sent["sales"], lambda s: (s.shop, start_of(s.at, HOUR_MS))).items():
        sums = {name: sum(s.cents for s in each) for name, each in grouped(some, lambda s: s.product).items()}
        best = sorted(sums.items(), key=lambda one: (-one[1], one[0]))[:2]
        found.append(types.Best(shop, start, best))
    return {"bests": found}


def p07_once(sent: Sent, types: Any) -> Given:
    found: list[Any] = []
    for one in sent["sales"]:
        if all((o.shop, o.id) != (one.shop, one.id) or abs(o.at - one.at) > DAY_MS for o in found):
            found.append(one)
    return {"unique-sales": found}


def p08_ads(sent: Sent, types: Any) -> Given:
    found = []
    for one in sent["impressions"]:
        users = [c.user for c in sent["clicks"] if c.ad == one.ad and 0 <= c.at - one.at <= 10 * MINUTE_MS]
        found += [types.Shown(one.ad, one.campaign, user) for user in users or [None]]
    return {"shown": found}


def p09_prices(sent: Sent, types: Any) -> Given:
    found = []
    for order in sent["orders"]:
        # Of several prices of one instant, the last in the order of the topic is valid.
        valid = [
            p for p in sent["prices"] if p.product == order.product and order.at - DAY_MS <= p.at <= order.at
        ]
        price = max(valid, key=lambda p: (p.at, sent["prices"].index(p)), default=None)
        found.append(
            types.Priced(order.product, order.id, None if price is None else price.cents * order.quantity)
        )
    return {"priced": found}


def p10_cases(sent: Sent, types: Any) -> Given:
    found = []
    names = "placed", "paid", "shipped"
    parts = [(one.at, number, one.order) for number, name in enumerate(names) for one in sent[name]]
    for order, some in grouped(sorted(parts), lambda part: part[2]).items():
        case: set[int] = set()
        since = 0
        for at, number, _ in [*some, (1 << 60, 0, "")]:
            if case and at > since + 7 * DAY_MS:
                found.append(types.Case(order, *(n in case for n in range(3))))
                case = set()
            since = since if case else at
            case.add(number)
            if len(case) == 3:
                found.append(types.Case(order, True, True, True))
                case = set()
    return {"cases": found}


def p11_rules(sent: Sent, types: Any) -> Given:
    """For rules that are all there before the first payment."""
    rules = {one.name: one for one in sent["rules"]}
    return {
        "flagged": [
            types.Flagged(one.account, one.id, rule.name)
            for one in sent["payments"]
            for rule in rules.values()
            if one.cents > rule.above_cents
        ]
    }


def p12_users(sent: Sent, types: Any) -> Given:
    zone = ZoneInfo("Europe/Berlin")

    def midnight_ms(at: int) -> int:
        local = datetime.fromtimestamp(at / 1_000, zone).replace(hour=0, minute=0, second=0, microsecond=0)
        return round((local.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))

    days = grouped(sent["views"], lambda v: (v.site, midnight_ms(v.at)))
    return {
        "daily": [
            types.Daily(site, start, len({v.user for v in some})) for (site, start), some in days.items()
        ]
    }


def p13_jumps(sent: Sent, types: Any) -> Given:
    jumps, counted = [], []
    for some in grouped(sent["readings"], lambda r: r.room).values():
        last = None
        for one in some:
            if last is not None and abs(one.celsius - last.celsius) > 50:
                jumps.append(one)
                continue
            last = one
            counted.append(one)
    return {"jumps": jumps, **p01_hourly({"readings": counted}, types)}


def p14_warmest(sent: Sent, types: Any) -> Given:
    hours = p01_hourly(sent, types)["means"]
    days = grouped(hours, lambda h: (h.room, start_of(h.start, DAY_MS)))
    return {
        "means": [
            types.Mean(room, start, start + DAY_MS, max(h.value for h in some))
            for (room, start), some in days.items()
        ]
    }


def p15_prices(sent: Sent, types: Any) -> Given:
    half = HOUR_MS // 2
    found = []
    for (shop, start), some in grouped(
        sent["sales"], lambda s: (s.shop, start_of(s.at, HOUR_MS, half))
    ).items():
        cents = [s.cents for s in some]
        largest = min(
            (s for s in some if s.cents == max(cents)), key=lambda s: (s.at, s.shop, s.id, s.product)
        )
        found.append(types.Statistics(shop, start, len(some), sum(cents), min(cents), largest))
    return {"statistics": found}


ORACLES: dict[str, Oracle] = {
    name: one for name, one in list(globals().items()) if name.startswith("p") and name[1:3].isdigit()
}
