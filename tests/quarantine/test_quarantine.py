"""``on_error="quarantine"`` against an oracle, over random histories, failures, decisions, commits and crashes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tailrace.core.declare.quarantine import Decision
from tailrace.core.engine import quarantine
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import QuarantineFullError
from tailrace.testing import Harness
from tailrace.testing.emitted import DeadLetter
from tests.oracle.quarantine.rules import handled_of
from tests.oracle.quarantine.test_model import VERSIONS, history
from tests.quarantine.app import Accounts, Audit, Ev, Mirror, app, done, events, world

SEEDS = int(os.environ.get("TAILRACE_SEEDS", "40"))
LIMIT = 6


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few events of a key may wait, so that the bound is met. The world begins anew."""
    monkeypatch.setattr(quarantine, "EVENTS_MOST", LIMIT)
    world.version, world.replaying = 0, False
    world.have_failed.clear()
    yield
    world.replaying = False


class Life:
    """A service on a random history, and a person who decides about its failures."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.history = [
            one._replace(at=one.at + 100, sets=tuple(timer._replace(at=timer.at + 100) for timer in one.sets))
            for one in history(random)
        ]
        self.sent = 0
        self.dropped: dict[str, list[str]] = {"Accounts": [], "Audit": []}
        self.seen = Counter[str]()
        self.decided: dict[int, str] = {}
        settings = TaskSettings(
            firing_budget=random.choice([1, 2, 100]), cache_bytes=random.choice([1, 1 << 20])
        )
        self.harness = Harness(
            app,
            reload=random.random() < 0.3,
            slice_size=random.choice([1, 3, 100]),
            commit_every=random.choice([1, 2, None]),
            settings=settings,
        )
        self.decisions = self.harness.plan.topics["bank.quarantine"]

    def run(self) -> None:
        """Send all events, decide until nothing waits, and compare with the oracle at every step."""
        for turn in range(2_000):
            if turn > 200:
                world.version = VERSIONS
            if self.sent < len(self.history) and self.random.random() < 0.6:
                count = self.random.choice([1, 1, 3])
                some = self.history[self.sent : self.sent + count]
                self.sent += len(some)
                self._do(lambda: self.harness.send(events, *map(Ev.of, some)))
            else:
                self._decide()
            fate = self.random.random()
            if fate < 0.1:
                self.harness.crash()
                self.seen["crashes"] += 1
            elif fate < 0.15:
                world.version = min(VERSIONS, world.version + 1)
            if not self.is_full:
                self.check()
                if self.sent == len(self.history) and not self.waiting():
                    return
        raise AssertionError("it comes to no end")

    is_full = False

    def _do(self, what) -> None:  # noqa: ANN001
        self.is_full = False
        try:
            what()
        except QuarantineFullError as error:
            assert "dead-letters list bank" in str(error)
            self.seen["full"] += 1
            self.is_full = True

    def letters(self) -> list[DeadLetter]:
        """The failures that a commit has shown."""
        return [one for one in self.harness.dead_letters() if one.reason == "quarantined"]

    def waiting(self) -> dict[tuple[str, str], int]:
        """By actor and key that wait: the number of the last failure, from the dead letters and the state."""
        self.harness.recover()
        (one,) = self.harness._service.partitions
        names = [actor.name for actor in self.harness.plan.actors]
        return {
            (names[actor], key): waits.failure for (actor, key), waits in one.task._units.waits.keys.items()
        }

    def _decide(self) -> None:
        letters = self.letters()
        if not letters:
            return
        numbers = set(self.waiting().values())
        last = [one for one in letters if int(one.headers["tailrace-failure"]) in numbers]
        letter = self.random.choice(last if last and self.random.random() < 0.8 else letters)
        actor, key = (
            letter.headers["tailrace-actor"].decode(),
            bytes.fromhex(letter.headers["tailrace-key-hex"].decode()),
        )
        number = int(letter.headers["tailrace-failure"]) + self.random.choice([0] * 9 + [100])
        action = self.random.choice(["release"] * 6 + ["drop", "drop", "drop-all"])
        action = "release" if actor == "Mirror" else self.decided.setdefault(number, action)
        before = len(self.harness.dead_letters())
        what = letter.headers.get("tailrace-timer")
        decision = Decision(key, actor, number, action)  # type: ignore[arg-type]
        is_last = self._is_last(actor, key, number, letters)
        self._do(lambda: [self.harness.send(self.decisions, *[decision] * self.random.choice([1, 1, 2]))])
        self.seen[action] += 1
        dropped = [one for one in self.harness.dead_letters()[before:] if one.reason == "dropped"]
        for one in dropped:
            number_of = Ev.__match_args__ and self._number(one)
            self.dropped[one.headers["tailrace-actor"].decode()].append(f"e{number_of}")
        if is_last and action != "release" and what is not None:
            name = what.decode().partition(" ")[0].partition(":")[2]
            self.dropped["Accounts"].append(f"t{name}")
        self.seen["dropped"] += len(dropped)

    def _is_last(self, actor: str, key: bytes, number: int, letters: list[DeadLetter]) -> bool:
        self.harness.recover()
        return self.waiting().get((actor, key.decode())) == number

    def _number(self, letter: DeadLetter) -> int:
        import msgspec

        return msgspec.json.decode(letter.value or b"", type=Ev).number

    def check(self) -> None:
        """What each key has handled is the beginning of what it must, and all of it where the key does not wait."""
        seen, waits = self.history[: self.sent], self.waiting()
        accounts = handled_of(seen, self.dropped["Accounts"])
        for key, must in accounts.items():
            state = self.harness.state(Accounts, key)
            handled = [] if state is None else state.handled
            assert handled == must[: len(handled)], (key, handled, must)
            assert ("Accounts", key) in waits or handled == must, (key, handled, must)
            emitted = [one.what for one in self.harness.emitted(done) if one.key == key]
            assert emitted == handled
            mirror = self.harness.state(Mirror, key)
            mirrored = [] if mirror is None else mirror.seen
            assert mirrored == handled[: len(mirrored)]
            assert ("Mirror", key) in waits or mirrored == handled
            audit = self.harness.state(Audit, key)
            audited = [] if audit is None else audit.numbers
            all_ = [
                one.number for one in seen if one.key == key and f"e{one.number}" not in self.dropped["Audit"]
            ]
            assert audited == all_[: len(audited)]
            assert ("Audit", key) in waits or audited == all_


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_key_waits_with_all_that_follows(seed: int) -> None:
    life = Life(seed)
    with life.harness:
        life.run()
        assert life.letters() or not any(one.fixed_in for one in life.history)
        world.replaying = True
        life.harness.replay()
