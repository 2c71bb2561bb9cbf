"""Data flow between functions.

Each function has one ``Frame``. The analysis is insensitive to context and to order: the arguments of all callers are
joined, and a variable may hold any value that is assigned to it anywhere. A frame runs again when a ``Slot`` that it has
read grows, until no slot grows. The result is therefore a superset of what the code can do.

A function that is not followed (the standard library, or code not written in Python) is assumed to return its arguments
and to call the functions among them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, EnumMeta
from typing import Any

from tailrace.core.declare.actor import ActorMeta
from tailrace.core.declare.analysis.frames import Call, Effects, Frame, Local, Slot, bound, fits
from tailrace.core.declare.analysis.values import (
    CONTEXT,
    EMIT,
    NO_VALUES,
    SCALARS,
    SEND,
    Atom,
    Attribute,
    Box,
    Instance,
    Known,
    Member,
    Method,
    Objects,
    Value,
    contents,
    dict_of,
    is_a,
    type_of,
)
from tailrace.core.declare.handlers import place_of
from tailrace.core.declare.topic import Edge

MOST_WORK = 500_000
"""Limit of the work, in values visited. It bounds the time of ``App.plan()`` to a few seconds, whatever the code calls.
An actor with 100 methods that call each other takes about 12,000 (50 ms)."""
_CALL = 10  # the cost of a call, in values
_DEEPEST = 40
_FARTHEST = 2
"""Code of other packages that does not receive the context is followed over this many calls: it may return a topic."""
_PLAIN = (
    abs,
    all,
    any,
    callable,
    chr,
    format,
    hasattr,
    hash,
    id,
    isinstance,
    issubclass,
    len,
    ord,
    print,
    repr,
    round,
)
"""Functions whose result holds none of their arguments."""


class Flow:
    """The analysis of some functions. ``run`` interprets one frame; functions of the packages in ``homes`` are followed."""

    def __init__(self, objects: Objects, homes: Iterable[str], run: Callable[[Flow, Frame], None]) -> None:
        self.objects = objects
        self._homes = frozenset(homes)
        self._run = run
        self._frames: dict[tuple[object, ...], Frame] = {}
        self._locals: dict[Frame, Local] = {}
        self._fields: dict[tuple[Atom, str], Slot] = {}
        self._waiting: dict[Frame, None] = {}
        self._among_now: set[Atom] = set()
        self._depth = 0
        self._work = 0

    @property
    def is_cut(self) -> bool:
        """Whether the analysis has reached its limit of work."""
        return self._work >= MOST_WORK

    def finish(self) -> None:
        """Run frames until no slot grows any more."""
        while self._waiting and not self.is_cut:
            frame = next(iter(self._waiting))
            del self._waiting[frame]
            frame.effects = Effects()
            self._run(self, frame)

    # --- slots ---

    def read(self, slot: Slot, by: Frame) -> Value:
        """The values of a slot so far. The frame ``by`` runs again when the slot grows."""
        slot.readers.add(by)
        return slot.value

    def add(self, slot: Slot, value: Value) -> None:
        """Add values to a slot. Constants are dropped: next to an unknown value, a constant index would look like the only one."""
        more = value - slot.value
        if more:
            more = frozenset(atom for atom in more if not isinstance(atom, Known) or not atom.is_scalar)
        if more:
            slot.value |= more
            self._waiting.update(dict.fromkeys(slot.readers))

    def field(self, atom: Atom, name: str) -> Slot:
        """The slot of an attribute that the code sets. ``*`` is the content of a container or instance that the code makes."""
        return self._fields.setdefault((atom, name), Slot())

    def use(self, value: Value, by: Frame) -> None:
        """Count the content of containers as named. Called when a container is used as a whole, not for ``d["key"]``."""
        self._work += len(value)
        by.effects.named.update(*map(self.objects.targets, value))

    def elements(self, value: Value, by: Frame) -> Value:
        """The elements of containers."""
        self.use(value, by)
        found: set[Atom] = set()
        for atom in () if self.is_cut else value:
            found |= self.objects.elements(atom)
            if isinstance(atom, Box | Instance):
                found |= self.read(self.field(atom, "*"), by)
        return frozenset(found)

    def item(self, value: Value, key: object, by: Frame) -> Value:
        """The values of ``value[key]`` for a constant key."""
        found: set[Atom] = set()
        for atom in value:
            one = frozenset((atom,))
            found |= (
                self.elements(one, by) if isinstance(atom, Box | Instance) else self.objects.item(atom, key)
            )
        return frozenset(found)

    def methods(self, value: Value, name: str) -> Value:
        """The methods of this name that are written in Python: what an operator or ``with`` calls."""
        found: set[Atom] = set()
        for atom in value:
            if isinstance(atom, Known | Instance):
                found |= {one for one in self.objects.attribute(atom, name).values if isinstance(one, Method)}
        return frozenset(found)

    def operate(self, value: Value, name: str, by: Frame, *arguments: Value) -> Value:
        """The results of the methods that an operator or ``with`` calls."""
        results = (self._call(one, Call(arguments), by) or NO_VALUES for one in self.methods(value, name))
        return NO_VALUES.union(*results)

    def give(self, functions: Value, defaults: Value, by: Frame) -> None:
        """Pass defaults to functions that the code defines."""
        for atom in functions:
            if isinstance(atom, Local):
                self._enter(atom.frame, Call(loose=self.elements(defaults, by)), by)

    def attribute(self, value: Value, name: str, by: Frame) -> Value:
        """The values of ``value.name``."""
        self._work += len(value)
        result: set[Atom] = set()
        for atom in value:
            found = self.objects.attribute(atom, name)
            own = set(found.values)
            for getter in found.getters:
                own |= self._call(getter, Call(), by) or NO_VALUES
            if isinstance(atom, Instance) and not isinstance(atom.cls, ActorMeta):
                own |= self.read(self.field(atom, name), by)
                own = own or set(self.read(self.field(atom, "*"), by))
            result |= own
        if not result and any(
            isinstance(atom, Instance) and isinstance(atom.cls, ActorMeta) for atom in value
        ):
            name = ""  # a durable field is data, even one that is called ``topics``
        return frozenset(result) or frozenset((self.objects.unknown(name),))

    # --- calls ---

    def call(self, callee: Value, call: Call, by: Frame) -> Value:
        """The results of a call."""
        results = [self._call(atom, call, by) for atom in callee]
        seen = [given for given in results if given is not None]
        if seen:
            return NO_VALUES.union(*seen)
        if _carries_context(call.all()):
            self._hide(call, by)
        return self._opaque(call, by)

    def _call(self, atom: Atom, call: Call, by: Frame) -> Value | None:
        """The results of calling one atom, or None if the callee is unknown."""
        if self._depth > _DEEPEST or self.is_cut:
            return NO_VALUES
        self._work += _CALL
        self._depth += 1
        try:
            return self._call_atom(atom, call, by)
        finally:
            self._depth -= 1

    def _call_atom(self, atom: Atom, call: Call, by: Frame) -> Value | None:
        if atom is EMIT:
            return self._emit(call, by)
        if atom is SEND:
            return self._send(call, by)
        if isinstance(atom, Known):
            return self._call_object(atom, call, by)
        if isinstance(atom, Method):
            return self._call(atom.function, call.after(atom.receiver), by)
        if isinstance(atom, Local):
            return self._enter(atom.frame, call, by)
        if isinstance(atom, Instance):
            return self.call(frozenset(self.objects.attribute(atom, "__call__").values), call, by)
        if isinstance(atom, Attribute):
            return self._call_attribute(atom.name, call, by)
        if isinstance(atom, Member):
            functions = self.objects.functions_of(atom.owner)
            return NO_VALUES.union(*(self._call(one, call, by) or NO_VALUES for one in functions))
        if isinstance(atom, Box):
            held = self.field(atom, "*")
            if atom.is_partial:
                return self._among(self.read(held, by) | call.all(), call, by)
            self.add(held, call.all())  # a method such as append
            return call.all() | {atom}
        return None

    def _call_object(self, atom: Known, call: Call, by: Frame) -> Value | None:
        one: Any = atom.object
        known = self.objects.known
        if is_a(one, types.FunctionType):
            return self._call_function(one, call, by)
        if is_a(one, types.MethodType):
            return self._call(known(one.__func__), call.after(known(one.__self__)), by)
        if is_a(one, functools.partial):
            held = (one.func, *one.args, *one.keywords.values())
            return self._among(call.all().union(known(each) for each in held), call, by)
        if is_a(one, type):
            return self._make(one, call, by)
        if one is getattr:
            return self._getattr(call, by)
        if atom.is_scalar or any(one is each for each in _PLAIN):
            self._opaque(call, by)
            return NO_VALUES
        if is_a(one, types.BuiltinFunctionType | types.MethodWrapperType):
            owner = getattr(one, "__self__", None)
            if not isinstance(owner, types.ModuleType):
                return self._opaque(call.after(known(owner)), by)
            return self._opaque(call, by) if self._is_standard(one) else None
        if contents(one) is not None:  # a method such as get
            self.use(frozenset((atom,)), by)
            return self._opaque(call, by) | {atom}
        wrapped = inspect.getattr_static(one, "__wrapped__", None)
        if wrapped is not None:
            return self._call(known(wrapped), call, by)
        if isinstance(inspect.getattr_static(type_of(one), "__call__", None), types.FunctionType):
            return self.call(frozenset(self.objects.attribute(atom, "__call__").values), call, by)
        return self._opaque(call, by) if self._is_standard(one) else None

    def _call_function(self, function: Any, call: Call, by: Frame) -> Value | None:
        held = dict_of(function)
        inner: list[object] = (
            list(held["registry"].values()) if "registry" in held and "dispatch" in held else []
        )
        inner += [held["__wrapped__"]] if "__wrapped__" in held else []
        results = [self._call(self.objects.known(each), call, by) or NO_VALUES for each in inner]
        if self._follows(function, call, by):
            results.append(
                self._enter(self._frame_of(function, self._distance(function, call, by)), call, by)
            )
        else:
            results.append(self._opaque(call, by))
        return NO_VALUES.union(*results)

    def _follows(self, function: types.FunctionType, call: Call, by: Frame) -> bool:
        package = package_of(function)
        if package in self._homes:
            return True
        if package == "tailrace" or package in sys.stdlib_module_names:
            return False
        return self._distance(function, call, by) <= _FARTHEST

    def _distance(self, function: types.FunctionType, call: Call, by: Frame | None) -> int:
        near = by is None or package_of(function) in self._homes or _carries_context(call.all())
        return 0 if near or by is None else by.distance + 1

    def _is_standard(self, one: object) -> bool:
        package = package_of(one)
        return package not in self._homes and package in sys.stdlib_module_names

    def begin(self, function: types.FunctionType, call: Call) -> Frame:
        """Add a function that is called from outside, such as a handler."""
        frame = self._frame_of(function, self._distance(function, call, None))
        for name, value in bound(frame.code, call):
            self.add(frame.variable(name), value)
        return frame

    def _frame_of(self, function: types.FunctionType, distance: int) -> Frame:
        """The frame of a function object. Its defaults are possible arguments."""
        key = ("function", self.objects.known(function))
        frame = self._frames.get(key)
        if frame is None:
            code, names = function.__code__, function.__code__.co_varnames
            closure = dict(zip(code.co_freevars, map(self._cell, function.__closure__ or ()), strict=True))
            frame = Frame(code, function.__globals__, place_of(function), distance, closure)
            self._frames[key] = frame
            defaults = function.__defaults__ or ()
            frame.required = code.co_argcount - len(defaults)
            given = dict(
                zip(names[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
            )
            for name, value in {**given, **(function.__kwdefaults__ or {})}.items():
                self.add(frame.variable(name), frozenset((self.objects.known(value),)))
            self._waiting[frame] = None
        elif distance < frame.distance:
            frame.distance = distance
            self._waiting[frame] = None
        return frame

    def _cell(self, cell: types.CellType) -> Slot:
        try:
            return Slot(frozenset((self.objects.known(cell.cell_contents),)))
        except ValueError:
            return Slot()  # not bound yet

    def local(self, code: types.CodeType, around: Frame) -> Local:
        """A function defined inside another one. It is analysed even if no call of it is found."""
        frame = self._frames.get(("local", code, around))
        if frame is None:
            closure = {name: around.variable(name) for name in code.co_freevars}
            frame = Frame(code, around.globals, around.place, around.distance, closure)
            self._frames["local", code, around] = frame
            self._locals[frame] = Local(frame)
            self._waiting[frame] = None
        around.effects.callees.add(frame)
        return self._locals[frame]

    def _enter(self, frame: Frame, call: Call, by: Frame) -> Value:
        if not fits(frame, call):
            return NO_VALUES
        by.effects.callees.add(frame)
        for name, value in bound(frame.code, call):
            self.add(frame.variable(name), value)
        return self.read(frame.result, by)

    def _among(self, values: Value, call: Call, by: Frame) -> Value:
        """Call every function among these values with all the others."""
        functions = frozenset(filter(_is_function, values)) - self._among_now
        self._among_now |= functions
        loose = replace(call, positional=(), named={}, loose=self._spread(values - functions, by))
        results = [self._call(function, loose, by) or NO_VALUES for function in functions]
        self._among_now -= functions
        return values.union(*results)

    def _spread(self, value: Value, by: Frame) -> Value:
        """Values and their elements, three levels deep."""
        for _ in range(3):
            value |= self.elements(value, by)
        return value

    def _opaque(self, call: Call, by: Frame) -> Value:
        given = call.all()
        self.use(given, by)
        # An enclosing ``_among`` passes all of these values already; starting again takes exponential time.
        again = self._among_now or not any(map(_is_function, given))
        return given if again else self._among(given, call, by)

    def _make(self, cls: type[Any], call: Call, by: Frame) -> Value:
        given = call.all()
        if cls is type and len(call.positional) == 1:
            return self.attribute(call.positional[0], "__class__", by)
        if cls is super:
            return self._super(call, by)
        if issubclass(cls, SCALARS) and not issubclass(cls, Enum):
            self._opaque(call, by)
            return NO_VALUES
        if is_a(cls, EnumMeta):
            return self.objects.elements(self.objects.known(cls))
        if isinstance(cls, ActorMeta):
            return NO_VALUES
        if cls is functools.partial or self._is_standard(cls):
            made = self.objects.box((by, call.place), is_partial=cls is functools.partial)
            self.add(
                self.field(made, "*"), given if cls is functools.partial else given | self.elements(given, by)
            )
            return frozenset((made,)) if cls is functools.partial else self._opaque(call, by) | {made}
        made = self.objects.instance(cls)
        self.add(self.field(made, "*"), given)
        for name in ("__init__", "__post_init__", "__new__"):
            function = inspect.getattr_static(cls, name, None)
            function = getattr(function, "__func__", function)
            if isinstance(function, types.FunctionType):
                first = self.objects.known(cls) if name == "__new__" else made
                begun = call if name != "__post_init__" else Call(place=call.place, text=call.text)
                self._call(self.objects.known(function), begun.after(first), by)
        return frozenset((made,))

    def _super(self, call: Call, by: Frame) -> Value:
        owners, receivers = [*call.positional, NO_VALUES, NO_VALUES][:2]
        if not call.positional and "__class__" in by.closure:
            owners = self.read(by.closure["__class__"], by)
            receivers = (
                self.read(by.variable(by.code.co_varnames[0]), by) if by.code.co_varnames else NO_VALUES
            )
        return self.super(owners, receivers)

    def super(self, owners: Value, receivers: Value) -> Value:
        """The values of ``super(owner, receiver)``."""
        classes = [one.object for one in owners if isinstance(one, Known) and is_a(one.object, type)]
        return frozenset(self.objects.super(cls, receiver) for cls in classes for receiver in receivers)

    def _getattr(self, call: Call, by: Frame) -> Value:
        owner, name, default = [*call.positional, NO_VALUES, NO_VALUES, NO_VALUES][:3]
        names = [one.object for one in name if isinstance(one, Known) and is_a(one.object, str)]
        if len(names) == 1:
            return default | self.attribute(owner, names[0], by)
        result = default.union(*(self.objects.member(atom) for atom in owner))
        self.use(result, by)
        return result

    # --- emit and send ---

    def _emit(self, call: Call, by: Frame) -> Value:
        to = self._spread(call.first("to"), by)
        by.effects.emits = True
        found = [one for atom in to for one in self.objects.targets(atom) if is_a(one, Edge)]
        by.effects.named.update(found)
        if not found and not _is_constant(to):
            self._hide(call, by)
        return NO_VALUES

    def _send(self, call: Call, by: Frame) -> Value:
        to = self._spread(call.first("actor"), by)
        found = [one for atom in to for one in self.objects.targets(atom) if is_a(one, ActorMeta)]
        by.effects.sent.update(found)
        if not found and not _is_constant(to):
            by.effects.sends_unseen = True
            self._hide(call, by)
        return NO_VALUES

    def _call_attribute(self, name: str, call: Call, by: Frame) -> Value | None:
        """Call a method of an unknown object. It may be the context, or an object of a class that the module names."""
        if by.distance == 0 and name == "emit" and call.may_have(2):
            return self._emit(call, by)
        if by.distance == 0 and name == "send" and call.may_have(3):
            return self._send(call, by)
        if not _carries_context(call.all()):
            return None
        results: list[Value] = []
        for cls in {id(one): one for one in by.globals.values() if isinstance(one, type)}.values():
            function = inspect.getattr_static(cls, name, None)
            if isinstance(function, types.FunctionType) and self._follows(function, call, by):
                method = self.objects.method(self.objects.known(function), self.objects.instance(cls))
                results.append(self._call(method, call, by) or NO_VALUES)
        return NO_VALUES.union(*results) if results else None

    def _hide(self, call: Call, by: Frame) -> None:
        by.effects.hidden.add((call.place[0], call.text))


def package_of(one: Any) -> str:
    """The top-level package of a function, of a class, or of the class of an object."""
    if is_a(one, types.FunctionType):  # functools.wraps changes __module__
        module = one.__globals__.get("__name__")
    else:
        owner = one if is_a(one, type | types.BuiltinFunctionType) else type_of(one)
        module = getattr(owner, "__module__", "")
    return str(module).partition(".")[0]


def _carries_context(value: Value) -> bool:
    return not value.isdisjoint((CONTEXT, EMIT, SEND))


def _is_constant(value: Value) -> bool:
    return bool(value) and all(isinstance(atom, Known) and atom.is_scalar for atom in value)


def _is_function(atom: Atom) -> bool:
    if isinstance(atom, Known):
        return is_a(atom.object, types.FunctionType | types.MethodType | functools.partial)
    return (
        isinstance(atom, Method | Local)
        or atom in (EMIT, SEND)
        or (isinstance(atom, Box) and atom.is_partial)
    )
