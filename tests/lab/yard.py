"""An app with values of all kinds, also odd ones, a history of it, and what its state must be by plain Python."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.values.partitioner import partition_of
from tailrace.testing import Harness

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
EAST = timezone(timedelta(hours=5, minutes=30))
NAMES = ("Riga", "", "a b", "a\tb", "it's", '"q"', "ü€😀", "a/b", "a\0b", "%41", "null")
RATIOS = (math.nan, math.inf, -math.inf, -0.0, 0.1 + 0.2, 1e300, None)
AMOUNTS = (Decimal("1.10"), Decimal("-0.00"), Decimal("12345678901234567890.123456789"), None)


class Kind(Enum):
    SMALL = "small"
    BIG = "big"


class Spot(msgspec.Struct, frozen=True):
    row: int
    zone: str | None
    since: timedelta


class Move(msgspec.Struct, frozen=True):
    yard: tr.Key[str]
    slot: tr.Key[int]
    at: tr.EventTime[datetime]
    kind: Kind
    weight: Decimal
    took: timedelta
    spot: Spot
    tags: list[str]
    note: int | str | None
    ratio: str | None  # JSON has no NaN
    amount: Decimal | None


class Moved(msgspec.Struct, frozen=True):
    yard: tr.Key[str]
    moves: int


app = tr.App("yard", partitions=3, on_error="dead-letter")
moves = app.topic("moves", Move, out_of_order="1m")
moved = app.topic("moved", Moved)


@app.actor
class Slot(tr.Actor):
    count: int = 0
    weight: Decimal = Decimal(0)
    kind: Kind | None = None
    last: datetime | None = None
    took: timedelta = timedelta()
    spot: Spot | None = None
    note: int | str | None = None
    share: float = 0.0
    ratio: float | None = tr.field(default=None, name="ratio-of")
    seven: int = tr.field(default=7, name="_kind")
    amount: Decimal | None = None
    gaps: dict[str, list[timedelta]] = tr.field(default_factory=dict)
    by: tr.MapState[tuple[str, int], int]
    recent: tr.ListState[int]

    @tr.process(moves)
    def move(self, event: Move, ctx: tr.Context[tuple[str, int]]) -> None:
        self.count += 1
        self.weight += event.weight
        self.kind = event.kind
        self.last = event.at
        self.took += event.took
        self.spot = event.spot
        self.note = event.note
        self.share = self.count / 3
        self.ratio = None if event.ratio is None else float(event.ratio)
        self.amount = event.amount
        self.gaps = {"all": [*self.gaps.get("all", []), event.took][-2:]}
        place = (event.spot.zone or "-", event.spot.row)
        self.by[place] = self.by.get(place, 0) + 1
        self.recent.append(event.spot.row)
        if len(self.recent) > 3:
            self.recent.popleft()
        ctx.set_timer(event.at + timedelta(hours=1), "quiet")
        ctx.emit(moved, Moved(event.yard, self.count))

    @tr.on_timer("quiet")
    def quiet(self, ctx: tr.Context[tuple[str, int]]) -> None:
        self.share = -1.0


def history(seed: int, count: int = 200) -> list[Move]:
    """Moves in the order in which they arrive, some of them late."""
    random = Random(seed)
    return [
        Move(
            random.choice(NAMES),
            random.randrange(-1, 2),
            (BEGIN + timedelta(seconds=20 * at - random.choice((0, 0, 30, 300)))).astimezone(EAST),
            random.choice(list(Kind)),
            Decimal(random.randrange(1000)) / 100,
            timedelta(milliseconds=random.randrange(10_000)),
            Spot(random.randrange(3), random.choice(("a", None)), timedelta(seconds=at)),
            [random.choice("xyz") for _ in range(random.randrange(3))],
            random.choice((None, 7, "seven")),
            told(random.choice(RATIOS)),
            random.choice(AMOUNTS),
        )
        for at in range(count)
    ]


def lived(seed: int, count: int = 200) -> tuple[Harness, list[Move]]:
    """A service that has handled such a history."""
    events = history(seed, count)
    h = Harness(app, partitions=3, commit_every=17)
    for one in events:
        h.send(moves, one, timestamp_ms=one.at)
    h.commit()
    return h, events


def told(ratio: float | None) -> str | None:
    """A number that can be compared, also if it is none."""
    return None if ratio is None else repr(ratio)


def json_of(note: int | str | None) -> str | None:
    """The text of a column of JSON."""
    return None if note is None else msgspec.json.encode(note).decode()


def expected(events: Iterable[Move]) -> dict[tuple[str, int], dict[str, Any]]:
    """The fields of each key after these events, in the form that Arrow gives them."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for one in events:
        of_key = found.setdefault(
            (one.yard, one.slot), {"count": 0, "weight": Decimal(0), "took": 0, "by": {}, "recent": []}
        )
        took = one.took // timedelta(microseconds=1)
        place = (one.spot.zone or "-", one.spot.row)
        of_key["count"] += 1
        of_key["weight"] += one.weight
        of_key["kind"] = one.kind.value
        of_key["last"] = one.at
        of_key["took"] += took
        of_key["spot"] = {
            "row": one.spot.row,
            "zone": one.spot.zone,
            "since": one.spot.since // timedelta(microseconds=1),
        }
        of_key["note"] = json_of(one.note)
        of_key |= {
            "ratio-of": one.ratio,
            "_kind": 7,
            "amount": None if one.amount is None else str(one.amount),
        }
        of_key["gaps"] = [("all", [*(of_key["gaps"][0][1] if "gaps" in of_key else []), took][-2:])]
        of_key["by"][place] = of_key["by"].get(place, 0) + 1
        of_key["recent"] = [*of_key["recent"], one.spot.row][-3:]
    return found


def lives(events: Iterable[Move], until: datetime | None = None) -> dict[tuple[str, int], dict[str, Any]]:
    """The state of each key right before its task handles anything later than ``until``, by plain Python.

    Events are taken as they arrive. A task is a partition. It knows what it was given, and nothing else.
    """
    given: dict[int, list[Move]] = {}
    for one in events:
        partition = partition_of(slot_key(one), 3)
        given.setdefault(partition, []).append(one)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for some in given.values():
        later = next((at for at, one in enumerate(some) if until is not None and one.at > until), len(some))
        known = some[:later]
        found |= expected(known)
        for key, share in _shares(known).items():
            found[key]["share"] = share
    return found


def slot_key(event: Move) -> bytes:
    """The bytes of a key, as any producer writes them."""
    return json.dumps([event.yard, event.slot], ensure_ascii=False, separators=(",", ":")).encode()


def _shares(events: Iterable[Move]) -> dict[tuple[str, int], float]:
    """What the timers leave in the field ``share``."""
    counts: dict[tuple[str, int], int] = {}
    due: dict[tuple[str, int], datetime] = {}
    quiet: dict[tuple[str, int], bool] = {}
    latest = BEGIN - timedelta(days=1)
    for one in events:
        key = one.yard, one.slot
        counts[key] = counts.get(key, 0) + 1
        due[key], quiet[key] = one.at + timedelta(hours=1), False
        latest = max(latest, one.at)
        for other in [other for other, at in due.items() if at < latest - timedelta(minutes=1)]:
            del due[other]
            quiet[other] = True
    return {key: -1.0 if quiet[key] else count / 3 for key, count in counts.items()}
