"""An instance that is back to its defaults, without timers and entries, has no row. Where it has one is a law of the oracle."""

from __future__ import annotations

from typing import Any

import pytest

import tailrace as tr
from tests.core.versions import Fields, Lives, Set, plan_of

BARE: Fields = {"count": (int, 0), "lasting": (tr.MapState[str, int], None)}


def test_an_instance_with_a_required_field_is_stored_until_it_is_cleared() -> None:
    life = Lives(plan_of({"text": (str, None)}))
    life.take(Set("a", 0, {"text": ""}))
    life.commit()
    assert len(life.state()) == 1
    life.take(Set("a", 0, clear=True))
    life.commit()
    assert life.state() == {}


def test_a_bare_instance_takes_no_memory_after_the_commit() -> None:
    life = Lives(plan_of(BARE))
    for number in range(50):
        life.take(*(Set(f"k{number}", 0, values) for values in ({}, {"count": 1}, {"count": 0})))
    life.commit()
    assert not life.table("Plane").live
    life.take(Set("a", 0, {"count": 1, "lasting[entry]": 1}))
    life.commit()
    assert life.table("Plane").live
    life.take(Set("a", 0, {"count": 0, "lasting[entry]": None}))
    life.commit()
    assert (life.table("Plane").live, life.state()) == ({}, {})


@pytest.mark.parametrize("fields", [{"name": (str, None)}, {"share": (float, tr.field(default=0, ttl="1s"))}])
def test_a_field_that_is_back_to_its_default_does_not_expire_again(fields: Fields) -> None:
    life = Lives(plan_of({"share": (int, tr.field(default=0, ttl="1s")), **fields}))
    named: dict[str, Any] = {"name": "it"} if "name" in fields else {}
    life.take(
        Set("a", 0, {"share": 1, **named}), *(Set("b", at, named) for at in range(1_000, 10_000, 1_000))
    )
    life.commit()
    assert life.task.totals.fired == 1
    found = life.instance("a")
    assert found is None if not named else (found.name, found.share) == ("it", 0)
