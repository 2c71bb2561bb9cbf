"""A TTL that is added, changed or undeclared for a while. It cannot be removed or moved to the other time
domain.

The rule: a value keeps the expiry with which it was written. tests/docs/test_upgrades.py has each single
change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tests.core.versions import Fields, Lives, Restart, Set, plan_of

Domain = Literal["event", "processing"]
Ttl = tuple[int, Domain] | None
"""How long in milliseconds and by which time, None for no TTL."""

_ENTRY = "m[x]"


def declared(ttl: Ttl | Literal["undeclared"]) -> Fields:
    """A plain field and a map with this TTL, beside a field that keeps their instance stored."""
    fields: Fields = {"kept": (int, 0)}
    if ttl == "undeclared":
        return fields
    options: dict[str, Any] = {} if ttl is None else {"ttl": ttl[0], "ttl_time": ttl[1]}
    return {
        **fields,
        "p": (int, tr.field(default=0, **options)),
        "m": (tr.MapState[str, int], tr.field(**options) if options else None),
    }


def stored(lives: Lives, key: str = "a") -> dict[str, Any]:
    """The plain field and the entry as they are stored, declared or not; what is not there is left out."""
    prefix = rows.actor_prefix("Plane") + rows.escaped(key.encode())
    found: dict[str, Any] = {}
    for row, value in lives.state().items():
        if row == prefix:
            plain = msgspec.msgpack.decode(value[rows.start_of_fields(value) :])
            found |= {"p": plain["p"]} if plain.get("p") else {}
        elif row.startswith(prefix + b"m"):
            found[_ENTRY] = msgspec.msgpack.decode(rows.unpack_entry(value)[0])
    return found


# --- any changes, against an oracle


@dataclass
class Oracle:
    """The rule in plain Python."""

    ttl: Ttl = None
    is_declared: bool = True
    watermark: int = -1
    clock: int = 0
    values: dict[tuple[str, str], tuple[int, int | None]] = field(default_factory=dict)
    """By key and place: the value, when it expires."""

    def start(self, ttl: Ttl | Literal["undeclared"]) -> None:
        self.is_declared = ttl != "undeclared"
        if ttl == "undeclared":
            return
        self.ttl = ttl
        self._expire()

    def set(self, event: Set) -> None:
        for place, value in event.values.items() if self.is_declared else ():
            now = event.at if self.ttl and self.ttl[1] == "event" else self.clock
            self.values[event.key, place] = (value, self.ttl and now + self.ttl[0])
            if not value:
                del self.values[event.key, place]
        self.watermark = event.at - 1
        self._expire()

    def tick(self, clock: int) -> None:
        self.clock = clock
        self._expire()

    def _expire(self) -> None:
        if not self.is_declared or self.ttl is None:
            return
        now = self.watermark if self.ttl[1] == "event" else self.clock
        for where, (_, at) in [*self.values.items()]:
            if at is not None and at <= now:
                del self.values[where]

    def stored(self, key: str) -> dict[str, int]:
        return {place: value for (of, place), (value, _) in self.values.items() if of == key}


@pytest.mark.one_seed_in(5)  # one takes 30 ms
def test_any_changes_do_what_the_rule_says_from_local_state_and_from_a_restore(seeds: range) -> None:
    for seed in seeds:
        chance = Random(seed)
        domain: Domain = chance.choice(("event", "processing"))
        ttl: Ttl | Literal["undeclared"] = chance.choice((None, (100, domain)))
        oracle = Oracle(None if ttl is None else (100, domain))
        plan = plan_of(declared(ttl))
        runs = [Lives(plan, reload=bool(seed % 2)), Lives(plan), Lives(plan, cache_bytes=0)]
        how: list[Restart] = ["local", "restored", "restored"]
        at = clock = 0
        for _ in range(chance.randrange(2, 7)):
            for _ in range(
                chance.randrange(chance.choice((1, 3, 12)))
            ):  # now and then a change follows at once
                at += chance.choice((1, 5, 40, 150))
                values: dict[str, Any] = {
                    place: chance.randrange(4) + (place == _ENTRY)
                    for place in chance.sample(["p", _ENTRY], chance.randrange(3))
                }
                event = Set(chance.choice("ab"), at, values | {"kept": 1})
                if not oracle.is_declared:
                    event = Set(event.key, at, {"kept": 1})
                ticks = chance.random() < 0.5
                clock += chance.choice((1, 40, 150)) * ticks
                for number, one in enumerate(runs):
                    one.take(event)
                    if ticks:
                        one.clock(clock)
                    if number == 2 or chance.random() < 0.3:
                        one.commit()
                        if number != 1 and chance.random() < 0.4:
                            one.restart(plan, how[number])
                oracle.set(Set(event.key, at, values if oracle.is_declared else {}))
                if ticks:
                    oracle.tick(clock)
            for one in runs:
                one.commit()
            assert runs[0].state() == runs[1].state() == runs[2].state(), f"seed {seed}"
            for key in "ab":
                assert stored(runs[0], key) == oracle.stored(key), f"seed {seed}"
            ttl = chance.choice(((100, domain), (30, domain), "undeclared"))
            plan = plan_of(declared(ttl))
            for number, one in enumerate(runs):
                one.restart(plan, how[number])
            oracle.start(ttl)
