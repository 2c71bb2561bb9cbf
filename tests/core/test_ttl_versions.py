"""A TTL that is added, changed, removed, moved to the other time domain, or undeclared for a while.

The rule: an expiry belongs to the TTL declaration that it was set under. Removing the TTL, or moving it to the other time
domain, ends that declaration for good: nothing that was written under it expires by it any more.
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

EVENT: Ttl = (100, "event")
PROCESSING: Ttl = (100, "processing")
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
            plain = msgspec.msgpack.decode(value[1:])
            found |= {"p": plain["p"]} if plain.get("p") else {}
        elif row.startswith(prefix + b"m"):
            found[_ENTRY] = msgspec.msgpack.decode(rows.unpack_entry(value)[0])
    return found


def written(ttl: Ttl, at: int = 1) -> Lives:
    """A key that both were written for at ``at``."""
    lives = Lives(plan_of(declared(ttl)))
    lives.clock(1)
    lives.report(Set("a", at, {"kept": 1, "p": 5, _ENTRY: 5}))
    lives.commit()
    return lives


def passed(lives: Lives, at: int, *, clock: bool = False) -> dict[str, Any]:
    """What is there when event time has come to ``at``, and the clock too if told."""
    lives.report(Set("other", at + 1, {"kept": 1}))
    if clock:
        lives.clock(at)
    lives.commit()
    return stored(lives)


BOTH = {"p": 5, _ENTRY: 5}


@pytest.mark.parametrize("how", ["local", "restored"])
class TestEachChange:
    def test_moved_to_the_other_domain_it_does_not_expire_by_the_old_one(self, how: Restart) -> None:
        for before, after in ((EVENT, PROCESSING), (PROCESSING, EVENT)):
            lives = written(before)
            lives.start(plan_of(declared(after)), how)
            assert passed(lives, 1_000, clock=True) == BOTH
            lives.report(Set("a", 1_001, {"p": 6, _ENTRY: 6}))
            assert passed(lives, 1_050, clock=True) == {"p": 6, _ENTRY: 6}
            assert passed(lives, 1_200, clock=True) == {}

    def test_removed_nothing_expires_any_more(self, how: Restart) -> None:
        lives = written(EVENT)
        lives.start(plan_of(declared(None)), how)
        assert passed(lives, 1_000) == BOTH

    def test_removed_and_brought_back_it_counts_from_the_next_write(self, how: Restart) -> None:
        lives = written(EVENT)
        lives.start(plan_of(declared(None)), how)
        lives.report(Set("a", 50, {"p": 6, _ENTRY: 6}))
        lives.commit()
        lives.start(plan_of(declared(EVENT)), how)
        assert passed(lives, 1_000) == {"p": 6, _ENTRY: 6}
        lives.report(Set("a", 1_002, {"p": 6, _ENTRY: 6}))
        assert passed(lives, 1_101) == {"p": 6, _ENTRY: 6}
        assert passed(lives, 1_102) == {}

    def test_removed_and_brought_back_what_was_not_written_meanwhile_stays_too(self, how: Restart) -> None:
        lives = written(EVENT)
        lives.start(plan_of(declared(None)), how)
        lives.commit()
        lives.start(plan_of(declared(EVENT)), how)
        assert passed(lives, 1_000) == BOTH

    def test_undeclared_for_a_while_it_goes_on(self, how: Restart) -> None:
        lives = written(EVENT)
        lives.start(plan_of(declared("undeclared")), how)
        assert passed(lives, 50) == BOTH
        lives.start(plan_of(declared(EVENT)), how)
        assert passed(lives, 100) == BOTH
        assert passed(lives, 101) == {}

    def test_undeclared_while_it_expired_it_is_gone_when_it_is_declared_again(self, how: Restart) -> None:
        lives = written(EVENT)
        lives.start(plan_of(declared("undeclared")), how)
        assert passed(lives, 1_000) == BOTH
        lives.start(plan_of(declared("undeclared")), how)
        assert passed(lives, 2_000) == BOTH
        lives.start(plan_of(declared(EVENT)), how)
        assert passed(lives, 2_001) == {}

    def test_renewed_before_it_was_undeclared_it_still_expires(self, how: Restart) -> None:
        lives = written(EVENT)
        lives.report(Set("a", 60, {"p": 5, _ENTRY: 5}))
        lives.commit()
        lives.start(plan_of(declared("undeclared")), how)
        assert passed(lives, 130) == BOTH
        lives.start(plan_of(declared(EVENT)), how)
        assert passed(lives, 159) == BOTH
        assert passed(lives, 160) == {}

    def test_declared_again_without_it_nothing_expires(self, how: Restart) -> None:
        lives = written(EVENT)
        lives.start(plan_of(declared("undeclared")), how)
        lives.commit()
        lives.start(plan_of(declared(None)), how)
        assert passed(lives, 1_000) == BOTH
        lives.start(plan_of(declared(EVENT)), how)
        assert passed(lives, 2_000) == BOTH

    def test_added_it_counts_from_the_next_write(self, how: Restart) -> None:
        lives = written(None)
        lives.start(plan_of(declared(EVENT)), how)
        assert passed(lives, 1_000) == BOTH
        lives.report(Set("a", 1_002, {"p": 5, _ENTRY: 5}))
        assert passed(lives, 1_101) == BOTH
        assert passed(lives, 1_102) == {}

    def test_longer_or_shorter_it_counts_from_the_next_write(self, how: Restart) -> None:
        for other in (30, 300):
            lives = written(EVENT)
            lives.start(plan_of(declared((other, "event"))), how)
            assert passed(lives, 100) == BOTH
            lives.report(Set("b", 101, {"kept": 1, "p": 5, _ENTRY: 5}))
            assert passed(lives, 102) == {}
            assert passed(lives, 100 + other) == {}
            assert stored(lives, "b") == BOTH
            passed(lives, 101 + other)
            assert stored(lives, "b") == {}

    def test_what_is_void_is_gone_once_its_time_has_come(self, how: Restart) -> None:
        lives = written(EVENT)
        lives.start(plan_of(declared(None)), how)
        passed(lives, 1_000)
        never = Lives(plan_of(declared(None)))
        never.report(Set("a", 1, {"kept": 1, "p": 5, _ENTRY: 5}), Set("other", 1_001, {"kept": 1}))
        never.commit()
        assert lives.state() == never.state()
        index = [row for row, _ in lives.store.rows() if row[:1] == rows.INDEX]
        assert index == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (EVENT, None, "has no ttl now, it had a ttl of 100 ms by event time: its values no longer expire"),
        (EVENT, PROCESSING, "written before do not expire until they are written again"),
        (None, EVENT, "written before do not expire until they are written again"),
        (EVENT, (30, "event"), "written before keep their expiry until they are written again"),
    ],
)
def test_each_field_is_named_once_with_what_becomes_of_it(before: Ttl, after: Ttl, said: str) -> None:
    lives = written(before)
    entries, plain = lives.start(plan_of(declared(after))).stored.notices
    assert entries.startswith("Plane.m has ")
    assert plain.startswith("Plane.p has ")
    assert said in entries
    assert said in plain
    lives.commit()
    assert lives.start(plan_of(declared(after))).stored.notices == ()


# --- any changes, against an oracle


@dataclass
class Oracle:
    """The rule in plain Python: values with the number of the declaration that they were written under."""

    ttl: Ttl = None
    declaration: int = 0
    is_declared: bool = True
    watermark: int = -1
    clock: int = 0
    values: dict[tuple[str, str], tuple[int, int, int | None]] = field(default_factory=dict)
    """By key and place: the value, its declaration, when it expires."""

    def start(self, ttl: Ttl | Literal["undeclared"]) -> None:
        self.is_declared = ttl != "undeclared"
        if ttl == "undeclared":
            return
        if (self.ttl and self.ttl[1]) != (ttl and ttl[1]):
            self.declaration += 1
        self.ttl = ttl
        self._expire()

    def set(self, event: Set) -> None:
        for place, value in event.values.items() if self.is_declared else ():
            now = event.at if self.ttl and self.ttl[1] == "event" else self.clock
            self.values[event.key, place] = (value, self.declaration, self.ttl and now + self.ttl[0])
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
        for where, (_, declaration, at) in [*self.values.items()]:
            if declaration == self.declaration and at is not None and at <= now:
                del self.values[where]

    def stored(self, key: str) -> dict[str, int]:
        return {place: value for (of, place), (value, _, _) in self.values.items() if of == key}


TTLS: list[Ttl | Literal["undeclared"]] = [
    None,
    EVENT,
    (30, "event"),
    PROCESSING,
    (30, "processing"),
    "undeclared",
]


@pytest.mark.one_seed_in(5)  # one takes 30 ms
def test_any_changes_do_what_the_rule_says_from_local_state_and_from_a_restore(seeds: range) -> None:
    for seed in seeds:
        chance = Random(seed)
        ttl = chance.choice(TTLS[:-1])
        oracle = Oracle(ttl if ttl != "undeclared" else None)
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
                    one.report(event)
                    if ticks:
                        one.clock(clock)
                    if number == 2 or chance.random() < 0.3:
                        one.commit()
                        if number != 1 and chance.random() < 0.4:
                            one.start(plan, how[number])
                oracle.set(Set(event.key, at, values if oracle.is_declared else {}))
                if ticks:
                    oracle.tick(clock)
            for one in runs:
                one.commit()
            assert runs[0].state() == runs[1].state() == runs[2].state(), f"seed {seed}"
            for key in "ab":
                assert stored(runs[0], key) == oracle.stored(key), f"seed {seed}"
            ttl = chance.choice(TTLS)
            plan = plan_of(declared(ttl))
            for number, one in enumerate(runs):
                one.start(plan, how[number])
            oracle.start(ttl)
