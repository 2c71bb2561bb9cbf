"""What a reading notes of the functions it reaches, and of the calls between them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.core.declare.reading.values import NOTHING, Atom, Value


class Slot:
    """A variable, a parameter, a result: what it may hold, and the frames that have read it."""

    __slots__ = ("readers", "value")

    def __init__(self, value: Value = NOTHING) -> None:
        self.value = value
        self.readers: set[Frame] = set()


@dataclass(slots=True)
class Deeds:
    """What a function does itself. ``named`` are topics, streams and classes; ``hidden`` are lines and their text."""

    callees: set[Frame] = field(default_factory=set)
    named: set[object] = field(default_factory=set)
    sent: set[object] = field(default_factory=set)
    emits: bool = False
    sends_unseen: bool = False
    hidden: set[tuple[int, str]] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Frame:
    """A function that is reached. ``does`` is noted anew by each run.

    ``distance`` is 0 for what belongs to the handlers' package or is given the context, and so many calls away from there
    for the rest. ``required`` is how many positional parameters have no default.
    """

    code: types.CodeType
    globals: dict[str, Any]
    place: str
    distance: int
    closure: dict[str, Slot]
    required: int = 0
    locals: dict[str, Slot] = field(default_factory=dict)
    result: Slot = field(default_factory=Slot)
    does: Deeds = field(default_factory=Deeds)

    def variable(self, name: str) -> Slot:
        """A variable of it, or of a function around it."""
        return self.closure.get(name) or self.locals.setdefault(name, Slot())


@dataclass(frozen=True, slots=True, eq=False)
class Local(Atom):
    """A function that the code defines."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Call:
    """What a function is called with, and where. ``loose`` may be any of its parameters."""

    positional: tuple[Value, ...] = ()
    named: dict[str, Value] = field(default_factory=dict)
    loose: Value = NOTHING
    place: tuple[int, int] = (0, 0)
    """Its line and the offset in its function."""
    text: str = ""

    def all(self) -> Value:
        """What any of its arguments may be."""
        return self.loose.union(*self.positional, *self.named.values())

    def after(self, first: Atom) -> Call:
        """The same with an argument before the others."""
        return replace(self, positional=(frozenset((first,)), *self.positional))

    def first(self, name: str) -> Value:
        """The first argument, which may be given by its name."""
        return self.positional[0] if self.positional else self.named.get(name, self.loose)

    def may_have(self, count: int) -> bool:
        """Whether there may be so many arguments."""
        return bool(self.loose) or len(self.positional) + len(self.named) == count


def reached(frame: Frame) -> Iterator[Frame]:
    """A frame and all that are called from it, directly or not."""
    seen, waiting = {frame}, [frame]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(one.does.callees - seen)
        seen |= one.does.callees


def fits(frame: Frame, call: Call) -> bool:
    """Whether a function can be called so at all. What is called by a name that is not known may be another."""
    code = frame.code
    if call.loose:
        return True
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = len(call.positional)
    return (
        (given <= code.co_argcount or bool(code.co_flags & inspect.CO_VARARGS))
        and (call.named.keys() <= set(names) or bool(code.co_flags & inspect.CO_VARKEYWORDS))
        and set(names[given : frame.required]) <= call.named.keys()
    )


def bound(code: types.CodeType, call: Call) -> Iterator[tuple[str, Value]]:
    """The parameters of a function with what a call gives to them."""
    count, names = code.co_argcount, code.co_varnames
    end = count + code.co_kwonlyargcount
    others = bool(code.co_flags & inspect.CO_VARARGS)
    rest = names[end] if others else None
    keywords = names[end + others] if code.co_flags & inspect.CO_VARKEYWORDS else None
    for at, value in enumerate(call.positional):
        name = names[at] if at < count else rest
        if name is not None:
            yield name, value
    for given, value in call.named.items():
        name = given if given in names[:end] else keywords
        if name is not None:
            yield name, value
    if call.loose:
        for name in (*names[len(call.positional) : end], rest, keywords):
            if name is not None and name not in call.named:
                yield name, call.loose
