"""The theory of quarantine (docs/adr/0029), run on its model: random histories, failures, decisions, commits and kills."""

from __future__ import annotations

import os
from collections import Counter
from copy import deepcopy
from random import Random

import pytest

from tests.oracle.quarantine.model import Command, Event, FullError, Rules, SetTimer, State, Taped, Task
from tests.oracle.quarantine.rules import handled_of

SEEDS = max(100, int(os.environ.get("TAILRACE_SEEDS", "300")))
VERSIONS = 3


class Wrong(Exception):
    """The model did not come to what it must."""


def history(random: Random) -> list[Event]:
    """Events of a few keys that set and cancel timers, and of which some fail."""
    events: list[Event] = []
    names: dict[str, list[str]] = {}
    for number in range(random.randint(5, 40)):
        key = random.choice("abc")
        at = number * 2 + random.randint(-4, 4)
        before = names.setdefault(key, [])
        sets = tuple(
            SetTimer(f"{number}.{n}", at + random.randint(-6, 14), random.choice([0, 0, 0, 1, 2]))
            for n in range(random.choice([0, 0, 1, 2]))
        )
        cancels = tuple(random.sample(before, min(len(before), random.choice([0, 0, 1]))))
        before += [one.name for one in sets]
        fixed_in = random.choice([0, 0, 0, 0, 1, 2])
        events.append(Event(number, key, at, sets, cancels, fixed_in, random.random() < 0.1))
    return events


class Life:
    """A run of a history: commits and kills anywhere, new versions of the code, and a person who decides."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.random, self.rules = Random(seed), rules
        self.events, self.commands = history(self.random), list[Command]()
        self.version, self.have_failed = 0, set[str]()
        self.tape: list[Taped] = []
        self.seen = Counter[str]()
        self.task = self._start()

    def run(self) -> State:
        """Run to the end: nothing is left to read, and no key waits."""
        for turn in range(5_000):
            if turn > 400:
                self.version = VERSIONS
            self._turn()
            state = self.task.state
            is_read = state.position == len(self.events) and state.commands == len(self.commands)
            if is_read and not self.task.draining and not any(one.waiting for one in state.keys.values()):
                self._commit()
                return state
        raise Wrong("it comes to no end")

    def _turn(self) -> None:
        random, task, state = self.random, self.task, self.task.state
        budget = random.choice([0, 1, 2, 100])
        if task.draining:  # before the next cause
            task.drain(budget)
        elif state.commands < len(self.commands):
            # A command has no event time, so it goes at once.
            self._command(self.commands[state.commands], budget)
        elif state.position < len(self.events) and random.random() < 0.7:
            self._take(budget)
        else:
            self._decide()
        self._check()
        fate = random.random()
        if fate < 0.3:
            self._commit()
        elif fate < 0.4:
            self.seen["kills"] += 1
            self.task = self._start()
        elif fate < 0.43:
            self.version = min(VERSIONS, self.version + 1)
            self.task = self._start()

    def _command(self, command: Command, budget: int) -> None:
        """What is dropped must be what was seen to have failed."""
        before = len(self.task.state.dropped)
        self.task.command(command, budget)
        dropped = self.task.state.dropped[before:]
        if dropped and (command.saw not in dropped or (command.action == "drop" and len(dropped) > 1)):
            raise Wrong(f"{dropped} dropped, decided for {command.saw}")

    def _take(self, budget: int) -> None:
        try:
            self.task.take(self.events[self.task.state.position], budget)
        except FullError:
            self.seen["full"] += 1
            self._commit()
            self._decide()

    def _decide(self) -> None:
        """Decide about a failure that a commit has shown, or, by mistake, about one that is past."""
        shown = self.tape[-1].state.keys if self.tape else {}
        waiting = [
            (name, one.waiting) for name, one in shown.items() if one.waiting and not one.waiting.releasing
        ]
        if waiting:
            key, one = self.random.choice(waiting)
            action = self.random.choice(["release"] * 6 + ["drop", "drop", "drop-all"])
            saw = f"t{one.first}" if one.first else "".join(f"e{each.event.number}" for each in one.kept[:1])
            self.commands += [Command(key, one.failure, action, saw)] * self.random.choice([1, 1, 2])

    def _commit(self) -> None:
        self.seen["commits"] += 1
        self.seen["commits in a drain"] += self.task.draining
        self.seen["waiting at a commit"] += any(one.waiting for one in self.task.state.keys.values())
        self.tape.append(self.task.commit())

    def _start(self) -> Task:
        return Task(deepcopy(self.tape[-1].state) if self.tape else State(), self._fails, self.rules)

    def _fails(self, name: str, fixed_in: int, once: bool) -> bool:
        if once and name not in self.have_failed:
            self.have_failed.add(name)
            return True
        return self.version < fixed_in

    def _check(self) -> None:
        """At every time a key has handled the beginning of what it must, and one that does not wait all of it."""
        state = self.task.state
        seen = self.events[: state.position]
        waits = [one.waiting for one in state.keys.values() if one.waiting is not None]
        dropped = Counter(state.dropped)
        if max(dropped.values(), default=0) > 1:
            raise Wrong("dropped twice")
        must = handled_of(seen, dropped)
        for name, key in state.keys.items():
            done, whole = key.handled, must.get(name, [])
            if done != whole[: len(done)]:
                raise Wrong(f"{name}: {done} is not the beginning of {whole}")
            if key.waiting is None and not self.task.draining and done != whole:
                raise Wrong(f"{name} does not wait: {done} is not {whole}")
        self.seen["failures"] = state.failed
        self.seen["most keys waiting"] = max(self.seen["most keys waiting"], len(waits))


def replay(life: Life) -> None:
    """Run along the tape, with code that never fails: the same state at every commit."""
    state = State()
    for taped in life.tape:
        task = Task(state, lambda *_: False, life.rules, along=taped.skips)
        task.drain(taped.drained - state.drained)
        for cause in taped.causes:
            budget = taped.drained - state.drained
            if cause == "event":
                task.take(life.events[state.position], budget)
            else:
                task.command(life.commands[state.commands], budget)
        if state != taped.state:
            raise Wrong("the replay differs at a commit")


def lives(rules: Rules, seeds: range) -> Counter[str]:
    """Run seeds, each with its oracle and its replay. Raises Wrong."""
    seen = Counter[str]()
    for seed in seeds:
        life = Life(seed, rules)
        try:
            end = life.run()
            must = handled_of(life.events, end.dropped)
            if {name: one.handled for name, one in end.keys.items()} != must:
                raise Wrong("the end differs")
            replay(life)
        except Wrong as wrong:
            raise Wrong(f"seed {seed}: {wrong}") from wrong
        seen.update(life.seen)
        seen["dropped"] += len(end.dropped)
        seen["released"] += end.released
    return seen


def test_every_key_is_handled_as_if_nothing_had_failed() -> None:
    seen = lives(Rules(), range(SEEDS))
    for what in (
        "failures",
        "dropped",
        "released",
        "kills",
        "full",
        "commits in a drain",
        "waiting at a commit",
    ):
        assert seen[what] > SEEDS / 10, f"too few {what}: {seen}"


@pytest.mark.parametrize("rule", Rules._fields)
def test_each_rule_is_needed(rule: str) -> None:
    with pytest.raises(Wrong) as noticed:
        lives(Rules(**{rule: False}), range(SEEDS))
    assert str(noticed.value).startswith("seed ")
