"""The functions that an analysis has reached, and the calls between them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.core.declare.analysis.values import NO_VALUES, Atom, Value


class Slot:
    """A variable, parameter or result: its possible values, and the frames that have read it."""

    __slots__ = ("readers", "value")

    def __init__(self, value: Value = NO_VALUES) -> None:
        self.value = value
        self.readers: set[Frame] = set()


@dataclass(slots=True)
class Effects:
    """What one function does itself, without its callees.

    ``named``: topics, streams and actor classes that its code names. ``hidden``: line and source text of each call whose
    target is unknown.
    """

    callees: set[Frame] = field(default_factory=set)
    named: set[object] = field(default_factory=set)
    sent: set[object] = field(default_factory=set)
    emits: bool = False
    sends_unseen: bool = False
    hidden: set[tuple[int, str]] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Frame:
    """A function in the analysis. Each run of it replaces ``effects``.

    ``distance``: 0 for a function of the handlers' package and for one that receives the context; otherwise the number
    of calls from there. ``required``: the number of positional parameters without a default.
    """

    code: types.CodeType
    globals: dict[str, Any]
    place: str
    distance: int
    closure: dict[str, Slot]
    required: int = 0
    locals: dict[str, Slot] = field(default_factory=dict)
    result: Slot = field(default_factory=Slot)
    effects: Effects = field(default_factory=Effects)

    def variable(self, name: str) -> Slot:
        """The slot of a local variable, or of a variable of an enclosing function."""
        return self.closure.get(name) or self.locals.setdefault(name, Slot())


@dataclass(frozen=True, slots=True, eq=False)
class Local(Atom):
    """A function that the analysed code defines: ``def`` or ``lambda`` inside a function."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a call, and its place. ``loose`` are values that may be passed to any parameter, as with ``*args``."""

    positional: tuple[Value, ...] = ()
    named: dict[str, Value] = field(default_factory=dict)
    loose: Value = NO_VALUES
    place: tuple[int, int] = (0, 0)
    """Line, and offset of the instruction."""
    text: str = ""

    def all(self) -> Value:
        """The possible values of all arguments together."""
        return self.loose.union(*self.positional, *self.named.values())

    def after(self, first: Atom) -> Call:
        """The call with one more argument in front, such as ``self``."""
        return replace(self, positional=(frozenset((first,)), *self.positional))

    def first(self, name: str) -> Value:
        """The first argument, whether passed by position or by name."""
        return self.positional[0] if self.positional else self.named.get(name, self.loose)

    def may_have(self, count: int) -> bool:
        """Whether the call may have this number of arguments."""
        return bool(self.loose) or len(self.positional) + len(self.named) == count


def reached(frame: Frame) -> Iterator[Frame]:
    """A frame and all its direct and indirect callees."""
    seen, waiting = {frame}, [frame]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(one.effects.callees - seen)
        seen |= one.effects.callees


def fits(frame: Frame, call: Call) -> bool:
    """Whether the arguments match the signature. If not, the call would raise TypeError, so it means another function."""
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
    """Bind the arguments of a call to parameter names."""
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
