# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportUntypedFunctionDecorator=false
# Misuse is the subject here, and the checkers would refuse most of it.
"""Wrong ``emits=`` fails when it is declared, or when the app is planned, and says what to do instead."""

from __future__ import annotations

import pytest

import tailrace as tr
from tailrace.core.declare.emissions import declared_emissions
from tests.core.misuse import Deck, Departure, Misuse, misuses
from tests.messages import Refused


def actor(d: Deck, emits: object) -> type[tr.Actor]:
    @d.app.actor(emits=emits)
    class Aircraft(tr.Actor):
        @tr.process(d.departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None: ...

    return Aircraft


def function(d: Deck, emits: object) -> None:
    @d.app.process(d.departures, emits=emits)
    def forward(event: Departure, ctx: tr.Context[str]) -> None: ...


def topic_of_another_app(d: Deck) -> None:
    function(d, [tr.App("other").topic("elsewhere", Departure, key="tail")])


def no_list(d: Deck) -> None:
    function(d, 7)


def type_of_an_event(d: Deck) -> None:
    function(d, [d.arrivals, Departure])


def actor_by_a_wrong_name(d: Deck) -> None:
    actor(d, [])
    function(d, ["Plane"])
    d.app.plan()


def actor_of_no_app(d: Deck) -> None:
    class Gate(tr.Actor):
        @tr.on_message
        def opened(self, message: Departure, ctx: tr.Context[str]) -> None: ...

    actor(d, [Gate])
    d.app.plan()


def actor_without_messages_by_its_name(d: Deck) -> None:
    actor(d, ["Aircraft"])
    d.app.plan()


@pytest.mark.parametrize("misuse", misuses(globals()))
def test_a_misuse_says_what_was_done_and_what_to_do(misuse: Misuse, refused: Refused) -> None:
    with refused():
        misuse(Deck())


def test_what_is_listed_is_kept_by_the_stable_name() -> None:
    d = Deck()

    @d.app.process(d.departures, name="to-gates", emits=(d.arrivals, d.stream, "gate"))
    def forward(event: Departure, ctx: tr.Context[str]) -> None: ...

    @d.app.actor(name="gate", emits=[])
    class Gate(tr.Actor):
        @tr.on_message
        def opened(self, message: Departure, ctx: tr.Context[str]) -> None: ...

    @d.app.process(d.departures)
    def silent(event: Departure, ctx: tr.Context[str]) -> None: ...

    d.app.plan()
    assert d.app.emits == {"to-gates": (d.arrivals, d.stream, "gate"), "gate": ()}
    found = declared_emissions(d.app)
    assert found["to-gates"].edges == {d.arrivals, d.stream}
    assert found["to-gates"].actors == {Gate}
    assert found["gate"].edges == frozenset()
    assert declared_emissions(d.app.renamed("other")).keys() == found.keys()


def test_a_failed_declaration_leaves_nothing_behind() -> None:
    d = Deck()
    with pytest.raises(tr.DefinitionError):

        @d.app.process(d.departures, emits=[d.arrivals])
        def forward(event: int, ctx: tr.Context[str]) -> None: ...

    assert d.app.emits == {}
    d.app.plan()
