"""Abstract values: what the analysis knows of a value in the code.

A value is a set of ``Atom``: the objects it may be or may be made of. The empty set is an unknown value. No user code
runs: attributes are looked up in ``__dict__`` and in slots.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, EnumMeta
from typing import Any

from tailrace.core.declare.actor import ActorMeta
from tailrace.core.declare.topic import Edge

_BUILT_IN = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)
SCALARS = (str, bytes, int, float, complex, bool, type(None))
_SEQUENCES = (list, tuple, set, frozenset, deque)
_MISSING: Any = object()


class Atom:
    """One possible value. Atoms are interned: equal atoms are the same object."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Known(Atom):
    """An object that exists at analysis time."""

    object: Any

    @property
    def is_scalar(self) -> bool:
        """Whether it is a constant such as a string or a number."""
        return is_a(self.object, SCALARS)


@dataclass(frozen=True, slots=True, eq=False)
class Instance(Atom):
    """Any instance of a class: ``self``, or one that the code creates."""

    cls: type[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Method(Atom):
    """A function bound to its first argument."""

    function: Atom
    receiver: Atom


@dataclass(frozen=True, slots=True, eq=False)
class Super(Atom):
    """``super()`` in the methods of ``owner``."""

    owner: type[Any]
    receiver: Atom


@dataclass(frozen=True, slots=True, eq=False)
class Attribute(Atom):
    """An attribute of an unknown object."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Member(Atom):
    """A method of ``owner``, or a function in it, whose name is unknown: ``getattr(owner, name)``."""

    owner: Atom


@dataclass(frozen=True, slots=True, eq=False)
class Box(Atom):
    """A container or a ``functools.partial`` that the code creates. ``Flow.field`` has its content."""

    is_partial: bool


@dataclass(frozen=True, slots=True, eq=False)
class Special(Atom):
    """The context and its methods ``emit`` and ``send``."""

    name: str


Value = frozenset[Atom]
NO_VALUES: Value = frozenset()
CONTEXT, EMIT, SEND = Special("ctx"), Special("emit"), Special("send")


@dataclass(slots=True)
class Found:
    """The result of an attribute lookup. ``getters`` are methods to call for its value: properties."""

    values: set[Atom] = field(default_factory=set)
    getters: set[Atom] = field(default_factory=set)


class Objects:
    """The atoms of one analysis, and lookup of attributes and elements."""

    def __init__(self, topics: Iterable[Edge[Any, Any]]) -> None:
        self._atoms: dict[tuple[object, ...], Atom] = {}
        self._elements: dict[Atom, Value] = {}
        self._targets: dict[Atom, frozenset[Any]] = {}
        self._member_cache: dict[Atom, tuple[Value, Value]] = {}
        self._of_app: dict[str, dict[str, Edge[Any, Any]]] = {"topics": {}, "streams": {}}
        for edge in topics:
            self._of_app["streams" if edge.is_stream else "topics"][edge.name] = edge

    # --- atoms ---

    def _atom(self, key: tuple[object, ...], make: Callable[[], Atom]) -> Atom:
        atom = self._atoms.get(key)
        if atom is None:
            atom = self._atoms[key] = make()
        return atom

    def known(self, one: object) -> Atom:
        """The atom of an object."""
        return self._atom(("known", id(one)), lambda: Known(one))

    def instance(self, cls: type[Any]) -> Atom:
        """The atom of an instance of a class."""
        return self._atom(("instance", id(cls)), lambda: Instance(cls))

    def method(self, function: Atom, receiver: Atom) -> Atom:
        """The atom of a bound function."""
        return self._atom(("method", function, receiver), lambda: Method(function, receiver))

    def super(self, owner: type[Any], receiver: Atom) -> Atom:
        """The atom of ``super(owner, receiver)``."""
        return self._atom(("super", owner, receiver), lambda: Super(owner, receiver))

    def box(self, place: object, *, is_partial: bool = False) -> Atom:
        """The atom of a container created at one place in the code."""
        return self._atom(("box", place, is_partial), lambda: Box(is_partial))

    def unknown(self, name: str) -> Atom:
        """The atom of an attribute of something unknown."""
        return self._atom(("attribute", name), lambda: Attribute(name))

    # --- attributes ---

    def attribute(self, atom: Atom, name: str) -> Found:
        """Look up ``atom.name``."""
        found = Found()
        if name == "__dict__":
            found.values.add(atom)
        elif atom is CONTEXT:
            if name in ("emit", "send"):
                found.values.add(EMIT if name == "emit" else SEND)
        elif isinstance(atom, Box):
            found.values.add(atom)
        elif isinstance(atom, Instance):
            if name == "__class__":
                found.values.add(self.known(atom.cls))
            else:
                self._bind(_in_classes(atom.cls.__mro__, name), atom, atom.cls, found)
        elif isinstance(atom, Super):
            cls = _class_of(atom.receiver) or atom.owner
            order = cls.__mro__ if atom.owner in cls.__mro__ else atom.owner.__mro__
            self._bind(_in_classes(order[order.index(atom.owner) + 1 :], name), atom.receiver, cls, found)
        elif isinstance(atom, Known):
            self._of_known(atom, name, found)
        return found

    def _of_known(self, atom: Known, name: str, found: Found) -> None:
        if atom.is_scalar and type(atom.object) in SCALARS:
            found.values.add(atom)  # a method of a constant
            return
        one, kind = atom.object, type_of(atom.object)
        if is_a(one, types.ModuleType):
            value = dict_of(one).get(name, sys.modules.get(f"{one.__name__}.{name}", _MISSING))
            if value is not _MISSING:
                found.values.add(self.known(value))
        elif issubclass(kind, type):
            members: dict[str, object] = dict_of(one).get("_member_map_", {}) if is_a(one, EnumMeta) else {}
            if name in members:
                found.values.add(self.known(members[name]))
            else:
                self._bind(_in_classes(one.__mro__, name), None, one, found)
        elif name == "__class__":
            found.values.add(self.known(kind))
        elif is_a(one, Enum) and name in ("value", "_value_"):
            found.values.add(self.known(dict_of(one)["_value_"]))
        else:
            value = inspect.getattr_static(one, name, _MISSING)
            if value is _MISSING and inspect.getattr_static(kind, "__getattr__", None) is not None:
                found.values |= self._held(atom)
            elif is_a(value, _BUILT_IN):
                found.values.add(atom)  # a built-in method: its result may be any element
            elif name in dict_of(one) and not inspect.isdatadescriptor(value):
                found.values.add(self.known(value))
            else:
                self._bind(value, atom, kind, found)

    def _bind(self, found: Any, receiver: Atom | None, cls: type[Any], into: Found) -> None:
        """Apply the descriptor protocol to a class attribute. ``receiver`` is None for a lookup on the class itself."""
        if found is _MISSING:
            return
        if is_a(found, staticmethod):
            into.values.add(self.known(found.__func__))
        elif is_a(found, classmethod):
            into.values.add(self.method(self.known(found.__func__), self.known(cls)))
        elif is_a(found, functools.singledispatchmethod):
            for function in found.dispatcher.registry.values():
                self._bind(function, receiver, cls, into)
        elif is_a(found, property | functools.cached_property):
            function = found.fget if is_a(found, property) else found.func
            if receiver is not None and function is not None:
                into.getters.add(self.method(self.known(function), receiver))
        elif is_a(found, functools.partialmethod):
            held = self._atom(
                ("partial", id(found)),
                lambda: Known(functools.partial(found.func, *found.args, **found.keywords)),
            )
            into.values.add(held if receiver is None else self.method(held, receiver))
        elif is_a(found, types.FunctionType) or "__wrapped__" in dict_of(found):
            function = self.known(found)
            into.values.add(function if receiver is None else self.method(function, receiver))
        elif hasattr(type_of(found), "__get__"):
            self._described(found, receiver, into)
        else:
            into.values.add(self.known(found))

    def _described(self, found: Any, receiver: Atom | None, into: Found) -> None:
        """Apply a descriptor. Slots of existing objects are read; durable fields give nothing, as they hold data."""
        if isinstance(receiver, Known) and (
            type(found) is types.MemberDescriptorType or type(found).__name__ == "_tuplegetter"
        ):
            try:
                into.values.add(self.known(found.__get__(receiver.object)))
            except AttributeError:
                pass  # an empty slot
            return
        get = _in_classes(type(found).__mro__, "__get__")
        if is_a(get, types.FunctionType) and not str(get.__module__).startswith("tailrace."):
            into.getters.add(self.method(self.known(get), self.known(found)))

    def member(self, owner: Atom) -> Value:
        """The values of ``getattr(owner, name)`` for an unknown name."""
        if not isinstance(owner, Known | Instance):
            return NO_VALUES
        held, _ = self._members(owner)
        return held | {self._atom(("member", owner), lambda: Member(owner))}

    def functions_of(self, owner: Atom) -> Value:
        """The functions that a ``Member`` of this owner may be."""
        return self._members(owner)[1]

    def _members(self, owner: Atom) -> tuple[Value, Value]:
        known = self._member_cache.get(owner)
        if known is None:
            one: Any = owner.object if isinstance(owner, Known) else None
            names = set(dict_of(one))
            cls = one if is_a(one, type) else _class_of(owner)
            for scope in () if cls is None or is_a(one, types.ModuleType) else cls.__mro__:
                names |= vars(scope).keys()
            values: set[Atom] = set()
            getters: set[Atom] = set()
            for name in names:
                if not name.startswith("__"):
                    found = self.attribute(owner, name)
                    values |= found.values
                    getters |= found.getters
            functions = {atom for atom in values if _is_function(atom)}
            held = {atom for atom in values if isinstance(atom, Known) and _is_held(atom.object)}
            known = self._member_cache[owner] = frozenset(held), frozenset(functions | getters)
        return known

    # --- containers ---

    def elements(self, atom: Atom) -> Value:
        """The elements of a container. Anything else is its own element."""
        if not isinstance(atom, Known):
            return frozenset((atom,))
        known = self._elements.get(atom)
        if known is None:
            known = self._elements[atom] = frozenset(self._elements_of(atom))
        return known

    def _elements_of(self, atom: Known) -> Iterator[Atom]:
        one = atom.object
        inner = contents(one)
        if inner is not None:
            for each in inner:
                if not is_a(each, SCALARS):
                    yield self.known(each)
        elif not atom.is_scalar:
            yield atom
            if not is_a(one, type | types.FunctionType | Edge):
                yield from (self.known(held) for held in dict_of(one).values() if is_a(held, Edge))

    def _held(self, atom: Known) -> Value:
        """The topics and containers held by an object with ``__getattr__``."""
        return frozenset(self.known(one) for one in dict_of(atom.object).values() if _is_held(one))

    def targets(self, atom: Atom) -> frozenset[Any]:
        """The topics, streams and actor classes that an atom is, or contains at any depth."""
        if not isinstance(atom, Known):
            return frozenset()
        known = self._targets.get(atom)
        if known is None:
            known = self._targets[atom] = frozenset(_targets_in(atom.object))
        return known

    def item(self, atom: Atom, key: Any) -> Value:
        """The values of ``atom[key]`` for a constant key."""
        if isinstance(atom, Attribute) and isinstance(key, str):
            edge = self._of_app.get(atom.name, {}).get(key)
            return NO_VALUES if edge is None else frozenset((self.known(edge),))
        if isinstance(atom, Known):
            one = atom.object
            try:
                if is_a(one, dict | types.MappingProxyType):
                    return frozenset((self.known(_mapping(one)[key]),))
                if is_a(one, list | tuple):
                    return frozenset((self.known(_items(one)[key]),))
                if is_a(one, EnumMeta):
                    return frozenset((self.known(dict_of(one)["_member_map_"][key]),))
            except (LookupError, TypeError):
                pass  # the key may exist later
        return self.elements(atom)


def is_a(one: object, kind: Any) -> bool:
    """Like isinstance, but without ``__class__``: on a proxy that would run code."""
    return issubclass(type(one), kind)


def type_of(one: object) -> Any:
    """The type of an object, without a type of its own for the type checkers."""
    return type(one)


def contents(one: Any) -> list[Any] | None:
    """The content of a container, keys included, or None for any other object."""
    if is_a(one, dict | types.MappingProxyType):
        held = _mapping(one)
        return [*held.keys(), *held.values()]
    if is_a(one, EnumMeta):
        return list(dict_of(one)["_member_map_"].values())
    if is_a(one, Enum):
        return [dict_of(one)["_value_"]]
    return _items(one) if is_a(one, _SEQUENCES) else None


def _mapping(one: Any) -> Mapping[Any, Any]:
    """A mapping without the overrides of a subclass of dict."""
    kind: Any = dict
    plain: Mapping[Any, Any] = dict(kind.items(one)) if is_a(one, dict) else one
    return plain


def _items(one: Any) -> list[Any]:
    base: Any = next(base for base in _SEQUENCES if is_a(one, base))
    return list(base.__iter__(one))


def _targets_in(one: object) -> Iterator[object]:
    waiting, seen = [one], set[int]()
    while waiting:
        one = waiting.pop()
        if not is_a(one, SCALARS) and id(one) not in seen:
            seen.add(id(one))
            if is_a(one, Edge | ActorMeta):
                yield one
            waiting.extend(contents(one) or ())


def _is_held(one: object) -> bool:
    """Whether an attribute is kept when the name is unknown."""
    return is_a(one, Edge | ActorMeta) or contents(one) is not None


def _is_function(atom: Atom) -> bool:
    return isinstance(atom, Method) or (isinstance(atom, Known) and is_a(atom.object, types.FunctionType))


def dict_of(one: object) -> Mapping[str, Any]:
    """The ``__dict__`` of an object, or an empty mapping."""
    try:
        held: Any = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    own: Mapping[str, Any] = held if is_a(held, dict | types.MappingProxyType) else {}
    return own


def _in_classes(classes: Iterable[type[Any]], name: str) -> Any:
    return next((vars(scope)[name] for scope in classes if name in vars(scope)), _MISSING)


def _class_of(atom: Atom) -> type[Any] | None:
    if isinstance(atom, Instance):
        return atom.cls
    if isinstance(atom, Known):
        cls: type[Any] = atom.object if is_a(atom.object, type) else type_of(atom.object)
        return cls
    return None
