"""The topics, streams and actors that a handler's code names, found without running any code.

1. Code names globals, variables of enclosing functions, imports, and attributes of all these
   (``module.topic``). Nested functions belong to the code, and so do defaults and ``__wrapped__``.
2. A function, method or property that is named is read as well, if it belongs to the app's own packages.
3. The attribute of something unknown (``self.out``, ``make().out``) may be that of any class or module that
   was named, and of the handler's own class.
4. A container counts with its elements, and any other object with its attributes, down to ``_DEEPEST``
   levels. In ``TOPICS.placed`` only the attribute counts.

The order of the code, its conditions and its arguments do not matter. What the code gets in another way (a
topic from an event, by ``getattr``, or emitted by another package) is not found. The context refuses such an
emit and names the fix: ``emits=``.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import EnumMeta
from typing import Any

from tailrace.core.declare.actor import ActorMeta
from tailrace.core.declare.declarations import Declarations
from tailrace.core.declare.topic import Edge

_DEEPEST = 4
_LARGEST = 10_000
"""A container with more elements is data: its elements are not looked at."""
_LIBRARY = frozenset(("tailrace", "msgspec", *sys.stdlib_module_names))
_HOLDERS = frozenset(("builtins", "collections", "functools", "types"))
"""Library modules whose objects hold those of the app: containers, methods, properties, partial functions."""
_INSTALLED = ("site-packages", "dist-packages")
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, deque, types.MappingProxyType)
_SCALARS = (str, bytes, int, float, bool, complex, type(None))
_METHODS = (types.FunctionType, staticmethod, classmethod)
_SLOTS = ("member_descriptor", "_tuplegetter")
_KINDS = {
    "LOAD_GLOBAL": "global",
    "LOAD_NAME": "global",
    "LOAD_FROM_DICT_OR_GLOBALS": "global",
    "LOAD_DEREF": "enclosing",
    "LOAD_CLASSDEREF": "enclosing",
    "LOAD_FROM_DICT_OR_DEREF": "enclosing",
    "IMPORT_NAME": "import",
}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_MISSING: Any = object()
_NO_ATTRIBUTES: Mapping[str, Any] = {}
Path = tuple[str, ...]


class References:
    """The objects that a handler names. ``cls`` is the actor class of the handler, if it is a method.

    ``emits``, ``sends`` and ``deletes``: whether the code names the methods of the context.
    """

    def __init__(self, handler: types.FunctionType, cls: type[Any] | None) -> None:
        self.edges: set[Edge[Any, Any]] = set()
        self.actors: set[type[Any]] = set()
        self._builtins: set[str] = set()
        self._paths: set[Path] = set()  # of attributes of unknown objects
        self._owners: dict[int, Any] = {}
        self._waiting: list[tuple[Any, int]] = []  # code may nest deeper than Python's call limit
        self._seen: dict[int, tuple[int, Any]] = {}  # it holds the objects, so that an id stays theirs
        owners = () if cls is None else cls.__mro__
        homes = {owner.__module__ for owner in owners if _top(owner.__module__) not in _LIBRARY}
        homes.add(_module_of(handler))
        self._homes = frozenset[str]().union(*map(_places, map(_top, homes)))
        if cls is not None:
            self._owners[id(cls)] = cls
        self._read(handler)
        self._finish()
        if cls is not None and ("type" in self._builtins or ("__class__",) in self._paths):
            self.actors.add(cls)
        self.emits, self.sends = ("emit",) in self._paths, ("send",) in self._paths
        self.deletes = ("delete",) in self._paths

    def _finish(self) -> None:
        """Visit all that waits, and look up the attributes of unknown objects, until nothing is new."""
        known: tuple[int, int] | None = None
        while True:
            while self._waiting:
                self._visit(*self._waiting.pop())
            if known == (len(self._paths), len(self._owners)):
                return
            known = len(self._paths), len(self._owners)
            for owner in list(self._owners.values()):
                for path in list(self._paths):
                    found = _find(owner, path[0])
                    for one in found if "super" in self._builtins else found[:1]:
                        self._name(one, path[1:])

    # --- objects ---

    def _refer(self, values: Iterable[Any], depth: int = 0) -> None:
        self._waiting.extend((value, depth) for value in values)

    def _visit(self, one: Any, depth: int) -> None:
        """Count an object that is named, and what it holds."""
        kind = _type_of(one)
        if kind in _SCALARS or self._seen.get(id(one), (99, None))[0] <= depth:
            return
        self._seen[id(one)] = depth, one
        if issubclass(kind, Edge):
            self.edges.add(one)
        elif issubclass(kind, ActorMeta):
            self.actors.add(one)
        elif issubclass(kind, types.FunctionType):
            self._read(one)
        elif issubclass(kind, types.ModuleType):
            self._owners[id(one)] = one
        elif issubclass(kind, type):
            if issubclass(kind, EnumMeta):
                self._refer(_dict_of(one)["_member_map_"].values())
            self._class(one)
        elif not issubclass(kind, Declarations):
            self._class(kind)
            if depth < _DEEPEST and (kind.__module__ in _HOLDERS or _top(kind.__module__) not in _LIBRARY):
                self._refer(_held(one), depth + 1)

    def _class(self, cls: type[Any]) -> None:
        """Count a class that may have instances, and its operators, which are not named at their use."""
        # The methods of another actor run in its own handlers.
        if issubclass(type(cls), ActorMeta) or id(cls) in self._owners or not self._is_home(cls.__module__):
            return
        self._owners[id(cls)] = cls
        held = (pair for scope in _scopes(cls) for pair in scope.items())
        self._refer(value for name, value in held if name.startswith("__") and type(value) in _METHODS)

    def _is_home(self, module: object) -> bool:
        """Whether a module belongs to the app's own packages."""
        top = _top(module)
        return top in self._homes or (top not in _LIBRARY and not self._homes.isdisjoint(_places(top)))

    # --- code ---

    def _read(self, function: types.FunctionType) -> None:
        """Count what a function names."""
        self._refer(function.__defaults__ or ())
        self._refer((function.__kwdefaults__ or {}).values())
        self._refer(_dict_of(function).values())
        enclosing = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        cells = {name: _content(cell) for name, cell in enclosing}
        if not self._is_home(_module_of(function)):
            self._refer(cells.values())
            return
        for kind, path in _loaded(function.__code__):
            if kind == "global" and path[0] in function.__globals__:
                self._name(function.__globals__[path[0]], path[1:])
            elif kind == "enclosing" and path[0] != "__class__" and path[0] in cells:
                self._name(cells[path[0]], path[1:])
            elif kind == "import":
                for module in _imported(path[0], str(function.__globals__.get("__package__") or "")):
                    self._refer((module,))
                    self._name(module, path[1:])
            else:
                if kind == "global":
                    self._builtins.add(path[0])
                self._unknown(path if kind == "attribute" else path[1:])

    def _name(self, value: Any, path: Path) -> None:
        """Count an object, or an attribute of it."""
        for at, name in enumerate(path):
            if issubclass(type(value), (Edge, Declarations)):
                return  # the name of a topic is not a target
            found = _attribute(value, name)
            if found is _MISSING:
                self._unknown(path[at:])
                break
            if type(found) in _METHODS and issubclass(type(value), type):
                self._class(value)  # the method may use other attributes of its class
            value = found
        self._refer((value,))

    def _unknown(self, path: Path) -> None:
        """Note the attribute of an unknown object, and attributes of that."""
        self._paths.update(path[at:] for at in range(len(path)))


@functools.lru_cache(maxsize=4096)
def _loaded(code: types.CodeType) -> tuple[tuple[str, Path], ...]:
    """The names that some code loads, each with the attributes that follow.

    For example ``("global", ("orders", "topics", "placed"))``.
    """
    found: list[tuple[str, Path]] = []
    module, is_open = "", False
    for one in dis.get_instructions(code):
        if one.opname == "EXTENDED_ARG":
            continue
        if one.opname in _KINDS:
            found.append((_KINDS[one.opname], (one.argval,)))
            module = one.argval if one.opname == "IMPORT_NAME" else module
        elif one.opname == "IMPORT_FROM":
            found.append(("import", (module, one.argval)))
        elif one.opname in _ATTRIBUTES and is_open and one.opname != "LOAD_SUPER_ATTR":
            kind, path = found[-1]
            found[-1] = kind, (*path, one.argval)
        elif one.opname in _ATTRIBUTES:
            found.append(("attribute", (one.argval,)))
        is_open = one.opname in _KINDS or one.opname in _ATTRIBUTES or one.opname == "IMPORT_FROM"
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found += _loaded(inner)
    return tuple(dict.fromkeys(found))


def _imported(name: str, package: str) -> Iterator[types.ModuleType]:
    """The modules that an import in some package may mean: an absolute one, and relative ones."""
    parts = package.split(".") if package else []
    names = (".".join(filter(None, (*parts[:count], name))) for count in range(len(parts) + 1))
    return (sys.modules[one] for one in names if one in sys.modules)


def _attribute(one: Any, name: str) -> Any:
    """An attribute that an object has itself, or ``_MISSING``."""
    if issubclass(type(one), type):
        return next(iter(_find(one, name)), _MISSING)
    value = _dict_of(one).get(name, _MISSING)
    if value is _MISSING:
        member = next(iter(_find(type(one), name)), None)
        if type(member).__name__ in _SLOTS:
            return _slot(member, one)
    return value


def _held(one: Any) -> Iterator[Any]:
    """The elements of a container, and the attributes of an object."""
    kind = _type_of(one)
    base: Any = next((base for base in _CONTAINERS if issubclass(kind, base)), None)
    if base is not None and base.__len__(one) <= _LARGEST:
        yield from list(base.__iter__(one))
        if hasattr(base, "values"):
            yield from list(base.values(one))
    # An enum's member has its class as ``__objclass__``.
    yield from (value for name, value in list(_dict_of(one).items()) if name != "__objclass__")
    yield from (_slot(member, one) for member in _slots_of(kind))


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type[Any]) -> tuple[Any, ...]:
    found = [pair for scope in _scopes(kind) for pair in scope.items() if pair[0] != "__objclass__"]
    return tuple(member for _, member in found if type(member) is types.MemberDescriptorType)


def _slot(member: Any, one: Any) -> Any:
    try:
        return member.__get__(one)
    except AttributeError:
        return _MISSING  # it is empty


def _find(owner: Any, name: str) -> list[Any]:
    """An attribute of a class, with those that it overrides in the bases, or an attribute of a module."""
    return [held[name] for held in _scopes(owner) if name in held]


def _scopes(owner: Any) -> list[Mapping[str, Any]]:
    return list(map(_dict_of, owner.__mro__ if issubclass(type(owner), type) else (owner,)))


def _dict_of(one: object) -> Mapping[str, Any]:
    try:
        found: Any = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return _NO_ATTRIBUTES
    return found if type(found) in (dict, types.MappingProxyType) else _NO_ATTRIBUTES


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # it is empty


def _module_of(function: types.FunctionType) -> str:
    return str(function.__globals__.get("__name__"))  # functools.wraps changes __module__


def _top(module: object) -> str:
    return str(module).partition(".")[0]


@functools.lru_cache(maxsize=4096)
def _places(top: str) -> frozenset[str]:
    """A top-level package, and the folder that it is in, unless that is for installed packages."""
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return frozenset((top,))
    folder = file.rpartition("/")[0]
    if hasattr(sys.modules[top], "__path__"):
        folder = folder.rpartition("/")[0]
    return frozenset((top,) if folder.rpartition("/")[2] in _INSTALLED else (top, folder))


def _type_of(one: object) -> Any:
    return type(one)  # isinstance would run the code of a proxy
