from __future__ import annotations

from datetime import date
from typing import Any, ClassVar

import pytest

import tailrace as tr
from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.annotations import Scope, UnresolvedName, accepts


class Plane: ...


class Jet(Plane): ...


def scope_here() -> Scope:
    return Scope.of_caller(0)


def test_a_name_is_looked_up_among_the_locals_first_and_then_in_the_module() -> None:
    class Jet: ...

    scope = Scope.of_caller(0)
    assert scope.resolve("Jet") is Jet
    assert scope.resolve("Plane") is Plane
    assert scope.resolve("list[Jet] | None") == list[Jet] | None


def test_the_locals_of_a_caller_are_not_those_of_what_it_calls() -> None:
    class Local: ...

    with pytest.raises(UnresolvedName):
        scope_here().resolve("Local")


def test_a_class_body_sees_the_function_around_it() -> None:
    class Local: ...

    class Outer:
        class Inner: ...

        scope = Scope.of_caller(0)

    assert Outer.scope.resolve("Local") is Local
    assert Outer.scope.resolve("Inner") is Outer.Inner


def test_a_field_does_not_hide_the_type_that_it_is_named_after() -> None:
    class Flight(tr.Actor):
        date: date | None = None

    (field,) = declaration_of(Flight).fields
    assert field.annotation == date | None


@pytest.mark.parametrize(
    ("annotation", "head"),
    [
        ("tr.MapState[str, Nowhere]", tr.MapState),
        ("'tr.ListState[int]'", tr.ListState),
        ("ClassVar[int]", ClassVar),
        (tr.MapState[str, int], tr.MapState),
        ("Nowhere[int]", None),
        ("tr.Nowhere[int]", None),
    ],
)
def test_what_stands_before_the_brackets_is_known_though_what_is_in_them_is_not(
    annotation: Any, head: Any
) -> None:
    assert Scope(globals(), {}).head(annotation) is head


@pytest.mark.parametrize(
    ("annotation", "given", "accepted"),
    [
        (Plane, Plane, True),
        (Plane, Jet, True),
        (Jet, Plane, False),
        (Plane | int, Jet | int, True),
        (Plane, Plane | int, False),
        (Any, Plane | int, True),
        (object, int, True),
        (list[int], list[int], True),
        (list[int], list[str], False),
    ],
)
def test_a_parameter_accepts_what_its_annotation_covers(annotation: Any, given: Any, accepted: bool) -> None:
    assert accepts(annotation, given) is accepted
