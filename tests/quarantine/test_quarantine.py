"""``on_error="quarantine"`` against an oracle, over random histories, failures, decisions, commits and crashes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.quarantine import QUARANTINE, Action, Decision
from tailrace.core.engine import quarantine
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import QuarantineFullError
from tailrace.core.names import quarantine_of
from tailrace.history.reading.stretches import scan
from tailrace.history.reading.tape_records import tape_record
from tailrace.log.interface import TopicPartition
from tailrace.testing import Harness
from tailrace.testing.emitted import DeadLetter
from tests.oracle.quarantine.model import Event
from tests.oracle.quarantine.rules import handled_of
from tests.oracle.quarantine.test_model import VERSIONS, history
from tests.quarantine.app import Ev, alone, bank, world

SEEDS = max(20, int(os.environ.get("TAILRACE_SEEDS", "250")) // 4)
LIMIT = 6
_LATER = 100
"""The histories of the model begin before 1970."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few events of a key may wait, so that the bound is met."""
    monkeypatch.setattr(quarantine, "EVENTS_MOST", LIMIT)


def moved(event: Event) -> Event:
    """An event of the model, later."""
    timers = tuple(one._replace(at=one.at + _LATER) for one in event.sets)
    return event._replace(at=event.at + _LATER, sets=timers)


class Life:
    """A service on a random history, and a person who decides about its failures."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        world.begin()
        self.random = random = Random(seed)
        self.history = [moved(one) for one in history(random)]
        self.sent = 0
        self.seen = seen
        self.dropped: dict[str, set[str]] = {"Accounts": set(), "Audit": set()}
        self.decided: dict[int, Action] = {}
        """By number of a failure: what was decided first, which counts."""
        self.bank = random.choice([bank, alone])
        self.harness = Harness(
            self.bank.app,
            checked=random.random() < 0.5,  # if not, the only handler of a topic is called without ceremony
            reload=random.random() < 0.3,
            slice_size=random.choice([1, 3, 100]),
            commit_every=random.choice([1, 2, None]),
            settings=TaskSettings(
                firing_budget=random.choice([1, 2, 100]), cache_bytes=random.choice([1, 1 << 20])
            ),
        )

    def run(self) -> None:
        """Send all events, decide until nothing waits, and compare with the oracle at every step."""
        for turn in range(2_000):
            if turn > 200:
                world.version = VERSIONS
            is_full = self._turn()
            fate = self.random.random()
            if fate < 0.1:
                self.harness.crash()
            elif fate < 0.15:
                world.version = min(VERSIONS, world.version + 1)
            if is_full:
                continue
            self._check()
            if self.sent == len(self.history) and not self.waiting():
                return
        raise AssertionError("it comes to no end")

    def _turn(self) -> bool:
        """Send events, or decide. Returns whether the service is down, as too many events of a key wait."""
        letters = [one for one in self.harness.dead_letters() if one.reason == "quarantined"]
        if self.sent < len(self.history) and (self.random.random() < 0.6 or not letters):
            some = self.history[self.sent : self.sent + self.random.choice([1, 2, 12])]
            self.sent += len(some)
            return self._is_full(lambda: self.harness.send(self.bank.events, *map(Ev.of, some)))
        return self._decide(letters) if letters else False

    def _is_full(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except QuarantineFullError:
            self.seen["full"] += 1
            return True
        return False

    def _decide(self, letters: list[DeadLetter]) -> bool:
        """Decide about a failure, mostly one that is the last of its key, sometimes twice."""
        numbers = set(self.waiting().values())
        last = [one for one in letters if int(one.headers["tailrace-failure"]) in numbers]
        letter = self.random.choice(last if last and self.random.random() < 0.8 else letters)
        number, actor = int(letter.headers["tailrace-failure"]), letter.headers["tailrace-actor"].decode()
        actions: tuple[Action, ...] = ("release", "release", "drop", "drop-all")
        if actor == "Mirror":
            actions = ("release",)
        action: Action
        if self.random.random() < 0.1:
            number, action = number + 1_000, "drop-all"  # no such failure
        else:
            action = self.decided.setdefault(number, self.random.choice(actions))
            if action != "release" and (timer := letter.headers.get("tailrace-timer")) is not None:
                self.dropped[actor].add(f"t{timer.decode().partition(' ')[0].partition(':')[2]}")
        decision = Decision(bytes.fromhex(letter.headers["tailrace-key-hex"].decode()), actor, number, action)
        decisions = self.harness.plan.topics[quarantine_of("bank")]
        is_full = self._is_full(
            lambda: self.harness.send(decisions, *[decision] * self.random.choice([1, 1, 2]))
        )
        for one in self.harness.dead_letters():
            if one.reason == "dropped":
                event = msgspec.json.decode(one.value or b"", type=Ev)
                self.dropped[one.headers["tailrace-actor"].decode()].add(f"e{event.number}")
        self.seen[action] += 1
        return is_full

    def waiting(self) -> dict[tuple[str, str], int]:
        """By actor and key that wait: the number of the last failure."""
        (cls,) = (one.cls for one in self.harness.plan.actors if one.name == QUARANTINE)
        assert issubclass(cls, tr.Actor)
        found: dict[tuple[str, str], int] = {}
        for key in self.harness.keys(cls):
            instance: Any = self.harness.state(cls, key)
            found |= {(actor, key.decode()): one.failure for actor, one in instance.waiting.items()}
        return found

    def _check(self) -> None:
        """What each key has handled is the beginning of what it must, and all of it where the key does not wait."""
        seen, waits, harness = self.history[: self.sent], self.waiting(), self.harness
        bank = self.bank
        emitted = harness.emitted(bank.done)
        for key, must in handled_of(seen, self.dropped["Accounts"]).items():
            account, mirror = harness.state(bank.accounts, key), harness.state(bank.mirror, key)
            audit = None if bank.audit is None else harness.state(bank.audit, key)
            handled = [] if account is None else account.handled
            mirrored = [] if mirror is None else mirror.seen
            audited = [] if audit is None else audit.numbers
            mine = [one.number for one in seen if one.key == key]
            dropped = self.dropped["Audit"]
            for actor, found, wanted in (
                ("Accounts", handled, must),
                ("Mirror", mirrored, handled),
                ("Audit", audited, [one for one in mine if bank.audit and f"e{one}" not in dropped]),
            ):
                assert found == wanted[: len(found)], (actor, key)
                assert (actor, key) in waits or found == wanted, (actor, key)
            assert [one.what for one in emitted if one.key == key] == handled
        self.seen["waiting"] += bool(waits)

    def replay(self) -> None:
        """Run along the tape, with handlers that never fail by themselves."""
        world.is_replayed = True
        self.harness.replay()
        plan, log = self.harness.plan, self.harness.log
        place = TopicPartition(plan.tape_topic, 0)
        taped = [tape_record(place, one) for one in scan(log, *place)]
        before = 0
        for one in taped:
            self.seen["commits in a release"] += one.within_drain and one.totals.released > before
            before = one.totals.released
            self.seen["released"] += one is taped[-1] and one.totals.released


def test_a_key_waits_with_all_that_follows() -> None:
    seen = Counter[str]()
    for seed in range(SEEDS):
        life = Life(seed, seen)
        try:
            with life.harness:
                life.run()
                life.replay()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    least = SEEDS / 20
    for what in ("full", "release", "drop", "drop-all", "waiting", "released", "commits in a release"):
        assert seen[what] > least, f"too few {what}: {seen}"
