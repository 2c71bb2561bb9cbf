"""Which topics and streams handlers may emit to, and which actors they may send messages to.

The targets are those that the handlers' code refers to or, where the declaration has ``emits=``, exactly those. What
is found is a superset:

- A handler whose code names ``emit`` may emit to every topic and stream that it refers to; one whose code names
  ``delete``, to every table. If it does not, topics have no effect.
- In the same way, a handler whose code names ``send`` may send to every actor that it refers to.

What code refers to is found by the names in it. No code is run.

===========================  =====================================================================================
A name in the code may be    and stands for
===========================  =====================================================================================
a global, or a variable of   that object
an enclosing function
a module in an import        that module, if it has been imported
an attribute                 the attributes of this name of the modules that were named, of the app's own classes
                             and their instances, and of the handler's own class
===========================  =====================================================================================

A container stands for its elements, a function for its defaults and what it wraps as well. A function or class of
the app's own code is read in turn, with a class's operators. The app's own code lies in the same top-level
package as the handler, or in the same folder unless packages are installed there.

Names are found, not flow, so too much may be found: a topic that is only compared counts. What comes from an
event, ``getattr``, an enum, ``app.topics`` or another package is not found. The context refuses such an emit and
names the fix: ``emits=``.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from posixpath import normpath
from typing import Any, cast

from tailrace.core.declare.actor import ActorMeta, declaration_of
from tailrace.core.declare.declarations import Declarations, Declared
from tailrace.core.declare.handlers import MessageRole
from tailrace.core.declare.topic import Edge, Stream, Topic
from tailrace.core.errors import DefinitionError

_LARGEST = 10_000
"""A container with more elements is data: its elements are not looked at."""
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, types.MappingProxyType)
_HELD: Mapping[type[Any], tuple[str, ...]] = {
    classmethod: ("__func__",),
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    types.MethodType: ("__func__", "__self__"),
    property: ("fget",),
    staticmethod: ("__func__",),
}


class References:
    """What a handler refers to. ``names`` are all names in the code that it may run.

    ``cls`` is the actor class that the handler is a method of, or None.
    """

    def __init__(self, handler: types.FunctionType, cls: type[Any] | None) -> None:
        self.edges: set[Edge[Any, Any]] = set()
        self.actors: set[type[Any]] = set()
        self.names: set[str] = set()
        self._bases: tuple[type[Any], ...] = () if cls is None else cls.__mro__
        self._roots = {code_root(one.__module__) for one in self._bases if not _is_library(one)}
        self._roots.add(code_root(_module_of(handler)))
        self._roots.discard("builtins")
        self._owners: list[Any] = []  # of attributes
        self._seen: dict[int, Any] = {}  # it holds the objects, so that an id stays theirs
        self._search((handler, *(() if cls is None else self._class(cls))))
        while self._search(value for one in self._owners for value in _attributes(one, self.names)):
            pass
        if cls is not None and not self.names.isdisjoint(("type", "__class__")):
            self.actors.add(cls)

    def _search(self, values: Iterable[Any]) -> bool:
        """Visit objects and what they lead to. Returns whether any of them was new."""
        before, waiting = len(self._seen), list(values)  # code may nest deeper than Python's call limit
        while waiting:
            one = waiting.pop()
            if id(one) not in self._seen:
                self._seen[id(one)] = one
                waiting += self._visit(one)
        return len(self._seen) > before

    def _visit(self, one: Any) -> Iterator[Any]:
        kind = cast("Any", type(one))  # isinstance would run the code of a proxy
        if issubclass(kind, Edge):
            self.edges.add(one)
        elif issubclass(kind, ActorMeta):
            self.actors.add(one)
            if one in self._bases:  # the methods of another actor run in its own handlers
                yield from self._class(one)
        elif issubclass(kind, types.FunctionType):
            yield from self._function(one)
        elif issubclass(kind, types.ModuleType):
            self._owners += () if one.__name__ in sys.stdlib_module_names else (one,)
        elif issubclass(kind, type):
            yield from self._class(one)
        elif not _is_library(kind):
            # Objects of other packages may lead anywhere, such as to all that a client or a test runner holds.
            self._owners += (one,) if kind is types.SimpleNamespace or self._is_own(kind.__module__) else ()
            yield kind
            yield from (getattr(one, name) for name in _HELD.get(kind, ()))
            yield _scope(one).get("__wrapped__")
            base = next((base for base in _CONTAINERS if issubclass(kind, base)), None)
            if base is not None and base.__len__(one) <= _LARGEST:
                yield from base.__iter__(one)
                yield from base.values(one) if hasattr(base, "values") else ()

    def _class(self, cls: type[Any]) -> Iterator[Any]:
        if self._is_own(cls.__module__):
            self._owners.append(cls)
            held = (pair for base in cls.__mro__ for pair in _scope(base).items())
            yield from (
                found for name, found in held if name[:2] == "__" and type(found) is types.FunctionType
            )

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        code, scope = function.__code__, function.__globals__
        enclosing = zip(code.co_freevars, function.__closure__ or (), strict=True)
        yield from (_content(cell) for name, cell in enclosing if name != "__class__")
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        yield _scope(function).get("__wrapped__")
        is_generated = code.co_filename == "<string>"  # as the methods of a dataclass are
        if self._is_own(_module_of(function)) and not is_generated:
            names, attributes = _names(code)
            self.names |= names | attributes
            yield from (scope[name] for name in names & scope.keys())
            packages = accumulate(str(scope.get("__package__") or "").split("."), "{}.{}".format)
            places = {f"{package}.{name}".strip(".") for package in ("", *packages) for name in names}
            yield from (sys.modules[name] for name in places & sys.modules.keys())

    def _is_own(self, module: str) -> bool:
        # Operators of the library say what they emit to. The library may lie in the same folder as the app.
        return module.partition(".")[0] != "tailrace" and code_root(module) in self._roots


def _attributes(owner: Any, names: set[str]) -> Iterator[Any]:
    """The attributes with one of these names. ``super()`` may find those that a class overrides."""
    hidden: set[str] = set()
    for scope in map(_scope, owner.__mro__ if issubclass(type(owner), type) else (owner,)):
        found = (names & scope.keys()) - hidden
        yield from (scope[name] for name in found)
        hidden |= set() if "super" in names else found
    for scope in map(_scope, type(owner).__mro__):
        slots = (scope[name] for name in names & scope.keys())
        yield from (_content(slot, owner) for slot in slots if type(slot) is types.MemberDescriptorType)


def _scope(one: object) -> Mapping[str, Any]:
    try:
        found: Any = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) in (dict, types.MappingProxyType) else {}


def _content(place: types.CellType | types.MemberDescriptorType, owner: object = None) -> Any:
    """What a variable or slot holds. None: it is empty."""
    try:
        return place.cell_contents if isinstance(place, types.CellType) else place.__get__(owner)
    except (ValueError, AttributeError):
        return None


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names in some code and in the code that is nested in it: those of objects, and those of attributes."""
    pairs = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    uses = [(one.opname, one.argval) for one in dis.get_instructions(code) if one.opcode in dis.hasname]
    attributes = frozenset(name for kind, name in uses if kind.endswith(("_ATTR", "_METHOD")))
    names = frozenset(name for kind, name in uses if not kind.endswith(("_ATTR", "_METHOD")))
    return names.union(*(one for one, _ in pairs)), attributes.union(*(one for _, one in pairs))


def code_root(module: str) -> str:
    """The folder of a module's top-level package, or that package if it is an installed one.

    Modules with one root are the code of one app.
    """
    top = module.partition(".")[0]
    found = sys.modules.get(top)
    place = next(iter(getattr(found, "__path__", ())), None) or getattr(found, "__file__", None) or ""
    folder = normpath(place).rpartition("/")[0] if place else ""  # ``python ../app.py`` leaves the dots
    return top if folder.rpartition("/")[2] in ("", "site-packages", "dist-packages") else folder


def _module_of(function: types.FunctionType) -> str:
    return str(function.__globals__.get("__name__"))  # functools.wraps changes __module__


def _is_library(cls: type[Any]) -> bool:
    return cls.__module__.partition(".")[0] in ("tailrace", "msgspec")


@dataclass(frozen=True)
class Emissions:
    """The possible targets of some handlers: topics and streams, and the actors that they may send to."""

    edges: frozenset[Edge[Any, Any]]
    actors: frozenset[type[Any]]


def emissions_of(
    calls: Iterable[Callable[..., Any]],
    cls: type[Any] | None,
    topics: Iterable[Topic[Any, Any]],
    streams: Iterable[Stream[Any, Any]],
    actors: Iterable[type[Any]],
) -> Emissions:
    """Find which of these topics and streams handlers may emit to, and which actors they may send to.

    ``cls`` is the actor class that the handlers are methods of, or None for functions.
    """
    found = [References(call, cls) for call in calls if isinstance(call, types.FunctionType)]
    edges = {
        edge
        for one in found
        for edge in one.edges
        if "emit" in one.names or (edge.is_table and "delete" in one.names)
    }
    sent = {actor for one in found if "send" in one.names for actor in one.actors}
    return Emissions(frozenset(edges.intersection((*topics, *streams))), frozenset(sent.intersection(actors)))


def check_emits(emits: Any, where: str) -> tuple[Declared, ...]:
    """Check the argument ``emits=``. Names of actors are resolved later, by ``declared_emissions``."""
    if not isinstance(emits, (list, tuple)):
        raise DefinitionError(
            f"{where} has emits={_spelled(emits)}, which is not a list",
            hint="Write emits=[...] with topics, streams and actors.",
        )
    items: Any = emits  # pyright: ignore[reportUnknownVariableType]  # the elements are checked below
    listed = tuple[Any, ...](items)
    for one in listed:
        if not isinstance(one, Edge | ActorMeta | str):
            raise DefinitionError(
                f"{where} has {_spelled(one)} in its emits=, which is not a topic, stream or actor",
                hint="List actor classes, and topics and streams as app.topic and app.stream returned them.",
            )
    return listed


def declared_emissions(app: Declarations) -> dict[str, Emissions]:
    """Resolve ``emits=`` of every actor and function that has it, by stable name.

    Raises DefinitionError for an actor that the app does not have.
    """
    found: dict[str, Emissions] = {}
    for name, listed in app.emits.items():
        where = app.actors[name].__name__ if name in app.actors else app.functions[name].where
        actors = frozenset(_actor_of(app, one, where) for one in listed if not isinstance(one, Edge))
        found[name] = Emissions(frozenset(one for one in listed if isinstance(one, Edge)), actors)
    return found


def _actor_of(app: Declarations, value: Any, where: str) -> type[Any]:
    cls: type[Any] | None = app.actors.get(value) if isinstance(value, str) else value
    if cls is None or cls not in app.actors.values():
        raise DefinitionError(
            f"{where} has {_spelled(value)} in its emits=, which is not an actor of the app {app.name!r}",
            hint=f"Its actors: {', '.join(sorted(app.actors)) or 'none'}. Decorate the class with "
            "@app.actor.",
        )
    if not any(isinstance(one.roles[0], MessageRole) for one in declaration_of(cls).handlers):
        raise DefinitionError(
            f"{where} has {cls.__name__} in its emits=, which takes no messages",
            hint=f"Leave it out, or give {cls.__name__} a method with @tr.on_message.",
        )
    return cls


def _spelled(value: Any) -> str:
    if isinstance(value, Edge):
        return value.name
    return value.__name__ if isinstance(value, type) else repr(value)
