"""A topic whose key becomes another field of its events: the state is under the old keys, and that is found
at the start.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import IncompatibleStateError
from tests.core.versions import Lives


class Place(msgspec.Struct, frozen=True):
    gate: str = ""


class Seen(msgspec.Struct, frozen=True):
    tail: str
    carrier: str
    at: int
    where: Place = Place()


class Renamed(msgspec.Struct, frozen=True):
    registration: str = msgspec.field(name="tail")
    carrier: str = ""
    at: int = 0


def plan_of(key: Any, event: Any = Seen, name: str = "Aircraft") -> Plan:
    app = tr.App("keys", partitions=1)
    topic = app.topic("seen", event, key=key, key_type=None if isinstance(key, str) else str, event_time="at")

    def see(self: Any, event: Any, ctx: tr.Context[str]) -> None:
        self.count += 1

    see.__annotations__["event"] = event
    body = {
        "__module__": __name__,
        "__annotations__": {"count": int},
        "count": 0,
        "see": tr.process(topic)(see),
    }
    made = cast(Any, type(tr.Actor))("Aircraft", (tr.Actor,), body)
    app.actor(name=name)(made)
    return app.plan()


def lived(key: Any) -> Lives:
    lives = Lives(plan_of(key))
    lives.commit()
    return lives


def by_function(event: Any) -> str:
    return str(event.tail)


@pytest.mark.parametrize(
    ("before", "after"), [("tail", "carrier"), ("tail", "where.gate"), ("where.gate", "tail")]
)
def test_another_field_is_refused_with_topic_fields_and_mend(before: str, after: str) -> None:
    lives = lived(before)
    with pytest.raises(IncompatibleStateError, match=r"@app.actor\(name=\.\.\.\)") as caught:
        lives.start(plan_of(after))
    error = caught.value
    assert (error.actor, error.field, error.stored, error.declared) == (
        "Aircraft",
        "key of seen",
        before,
        after,
    )
    lives.start(plan_of(before))
    lives.start(plan_of(after, name="Carrier"))


def test_an_attribute_that_is_renamed_and_keeps_its_name_in_the_events_is_the_same_key() -> None:
    assert lived("tail").start(plan_of("registration", Renamed)).stored.notices == ()


def test_a_function_is_said_as_what_it_gives_is_not_known() -> None:
    lives = lived("tail")
    (said,) = lives.start(plan_of(by_function)).stored.notices
    assert said.startswith("the key of seen for Aircraft is a function now, it was tail: if the keys differ")
    lives.commit()
    assert lives.start(plan_of(by_function)).stored.notices == ()
    assert len(lives.start(plan_of("tail")).stored.notices) == 1
