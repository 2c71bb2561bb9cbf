"""A changed default: stored values read as before. tests/docs/test_upgrades.py has each single change."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from tailrace.core.errors import IncompatibleStateError
from tests.core.versions import Fields, Lives, Set, plan_of

KEPT: Fields = {"kept": (int, 0)}


def lived() -> Lives:
    lives = Lives(plan_of(KEPT))
    lives.take(Set("a", 1, {"kept": 1}))
    lives.commit()
    return lives


def test_a_version_is_committed_even_where_no_event_comes() -> None:
    lives = lived()
    assert not lives.start(plan_of(KEPT)).dirty
    assert lives.start(plan_of({**KEPT, "n": (int, 0)})).dirty
    lives.commit()
    assert not lives.task.dirty
    assert not Lives(plan_of(KEPT)).task.dirty, "a new task has nothing to commit yet"


def test_the_default_that_a_field_was_added_with_cannot_change_while_it_is_undeclared() -> None:
    lives = lived()
    for fields in ({**KEPT, "n": (int, 0)}, KEPT):
        lives.start(plan_of(fields))
        lives.commit()
    with pytest.raises(IncompatibleStateError, match="Keep the default") as caught:
        lives.start(plan_of({**KEPT, "n": (int, 7)}))
    assert caught.value.field == "n"


# --- any changes, against an oracle


@dataclass
class Oracle:
    """What each key reads: a value once it is stored, the default at which a field was added, else that of
    now.
    """

    defaults: dict[str, int]
    stored: dict[str, dict[str, int]] = field(default_factory=dict)

    def start(self, defaults: dict[str, int]) -> None:
        self.defaults = defaults
        for values in self.stored.values():
            for name, default in defaults.items():
                values.setdefault(name, default)

    def set(self, key: str, given: dict[str, int]) -> None:
        values = {**self.stored.get(key, self.defaults), **given}
        self.stored[key] = values
        if values == self.defaults:
            del self.stored[key]


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_any_changes_of_defaults_read_as_an_oracle_that_looks_at_every_key_at_once(seeds: range) -> None:
    for seed in seeds:
        chance = Random(seed)
        defaults = {"kept": 0}
        oracle = Oracle(dict(defaults))
        runs = [Lives(versioned(defaults), reload=bool(seed % 2)), Lives(versioned(defaults), cache_bytes=0)]
        for _ in range(chance.randrange(2, 7)):
            for at in range(chance.randrange(6)):
                given = {name: chance.randrange(3) for name in defaults if chance.random() < 0.4}
                key = chance.choice("abcd")
                for one in runs:
                    one.take(Set(key, at, dict(given)))
                    one.commit()
                oracle.set(key, given)
            for key in "abcd":
                for one in runs:
                    found = one.instance(key)
                    expected = oracle.stored.get(key)
                    assert (found is None) == (expected is None), f"seed {seed}"
                    if found is not None and expected is not None:
                        assert {name: getattr(found, name) for name in defaults} == expected, f"seed {seed}"
            assert runs[0].state() == runs[1].state()
            defaults["kept"] = chance.randrange(3) if chance.random() < 0.5 else defaults["kept"]
            if chance.random() < 0.4:
                defaults[f"f{len(defaults)}"] = chance.randrange(3)
            for one, how in zip(runs, ("local", "restored"), strict=True):
                one.restart(versioned(defaults), how)  # type: ignore[arg-type]  # zip widens the literals
                one.commit()
            oracle.start(dict(defaults))


def versioned(defaults: dict[str, int]) -> Any:
    return plan_of({name: (int, default) for name, default in defaults.items()})
