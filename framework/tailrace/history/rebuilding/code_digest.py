"""The code of a rebuild: a digest of all modules that the app's handlers can reach, part by part.

Theory. A state that is half by one code and half by another is the result of neither. So a rebuild records its code when it
begins, only the same code resumes it, and each process compares its own code before it runs a unit of work. The parts::

    module NAME       the app's own modules: those with its declarations, and all modules that these import, recursively
    package NAME      the version of each installed distribution that an own module imports; its modules are not read
    file NAME         a data file that ``App(code_files=...)`` names
    app, environment  version and partitions; Python, msgspec, time zones, tailrace

A module is *own* if it is in a top-level package of the app and its actors, wherever that is installed, or if it is neither in
the standard library nor in an installed distribution. Imports are read from compiled code, without running anything. So the
result does not depend on the order of imports or on other imports of the process, and it includes a module that a function
imports only when it is called. A module's digest is that of its compiled code without file names and line numbers: source, a
``.pyc`` and a zip on another machine give the same digest, and comments do not count.

A module that imports others by a computed name is reported (``CodeDigest.unseen``), since these imports cannot be seen. In
that case all own modules that the process has imported so far count. The digest does not cover files that are not named,
environment variables, or other services.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, cast

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import UsageError
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import environment

_MISSING = "not there"
_COMPUTED = frozenset(
    {
        "__import__",
        "exec",
        "exec_module",
        "import_module",
        "iter_modules",
        "run_module",
        "run_path",
        "spec_from_file_location",
        "walk_packages",
    }
)
"""Code that uses one of these names may import modules that are not named in the code."""


class CodeDigest(msgspec.Struct, frozen=True):
    """The code of an app, as far as it can be seen from this process."""

    parts: dict[str, str]
    """By the name of a part: its digest or version."""
    unseen: tuple[str, ...] = ()
    """Own modules that import others by a computed name."""

    @property
    def digest(self) -> str:
        """The digest of all parts."""
        return hashlib.sha256(msgspec.msgpack.encode(sorted(self.parts.items()))).hexdigest()[:16]

    def compared(self) -> str:
        """A note for a person: what was compared, and what was not."""
        kinds = [name.partition(" ")[0] for name in self.parts]
        many = [
            counted(kinds.count("module"), "module"),
            counted(kinds.count("package"), "installed package"),
        ]
        if "file" in kinds:
            many.append(counted(kinds.count("file"), "named file"))
        said = (
            f"the code is the same: {', '.join(many)}. "
            "Environment variables, and files that App(code_files=...) does not name, are not compared"
        )
        if self.unseen:
            said += (
                f"; nor is what {', '.join(self.unseen)} may import by a computed name, unless it was imported when the rebuild "
                "began"
            )
        return said


def code_of(reference: str, plan: Plan) -> CodeDigest:
    """The code of the app that ``package.module:app`` names, whose plan is ``plan``.

    Raises:
        UsageError: A file that the app names as a part of its code cannot be read.
    """
    app, module = find_app(reference), reference.partition(":")[0]
    declared = {one.cls.__module__ for one in plan.actors}
    declared |= {one.call.__module__ for one in app.functions.values()}
    walk = _Walk({module, *declared})
    walk.run()
    parts = {"app version": plan.version, "app partitions": str(plan.partitions)}
    parts |= {f"environment {name}": value for name, value in environment().items()}
    parts |= walk.parts
    for name in app.code_files:
        parts[f"file {name}"] = _file_digest(module, name)
    return CodeDigest(parts, tuple(sorted(walk.unseen)))


def differences(reference: str, noted: Mapping[str, str]) -> list[str]:
    """The recorded modules, packages and files that differ in this process. Parts that are not in ``noted`` are ignored."""
    module = reference.partition(":")[0]
    found: list[str] = []
    for part, digest in noted.items():
        kind, _, name = part.partition(" ")
        if kind == "module":
            here = _module_digest(name)
        elif kind == "package":
            here = _version(name)
        elif kind == "file":
            here = _file_digest(module, name)
        else:
            continue
        if here != digest:
            found.append(part)
    return found


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts in which two codes differ."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


# --- from module to module


class _Walk:
    """Visits all own modules that can be reached from some modules."""

    def __init__(self, begin: set[str]) -> None:
        self.parts: dict[str, str] = {}
        self.unseen: set[str] = set()
        self._own = {name.partition(".")[0] for name in begin}
        self._waiting = [inner for name in sorted(begin) for inner in _with_parents(name)]

    def run(self) -> None:
        self._follow()
        if self.unseen:
            self._waiting = sorted(  # their parent packages are in sys.modules, too
                name
                for name in list(sys.modules)
                if name not in ("__main__", "__mp_main__") and self._is_own(name)
            )
            self._follow()

    def _follow(self) -> None:
        while self._waiting:
            name = self._waiting.pop()
            part = f"module {name}"
            if part in self.parts:
                continue
            if not self._is_own(name):
                self._note_installed(name)
                continue
            self.parts[part] = _module_digest(name)
            code = _code(name)
            for one in () if code is None else _within(code):
                for base, names in _imports(one, _package(name)):
                    self._waiting += _with_parents(base)
                    if names and self._is_own(base):
                        self._waiting += [inner for each in names if _is_module(inner := f"{base}.{each}")]
                if _COMPUTED.intersection(one.co_names):
                    self.unseen.add(name)

    def _is_own(self, name: str) -> bool:
        top = name.partition(".")[0]
        if top == "tailrace":
            return False
        if top in self._own:
            return True
        place = _spec(top)
        return place is not None and _is_elsewhere(place) and not (_is_site(place) and _distributions(top))

    def _note_installed(self, name: str) -> None:
        top = name.partition(".")[0]
        place = _spec(top)
        if place is None:
            self.parts[f"module {top}"] = _MISSING
        elif _is_elsewhere(place):
            for one in _distributions(top) or ([top] if top == "tailrace" else []):
                self.parts[f"package {one}"] = _version(one)


def _within(code: CodeType) -> Iterator[CodeType]:
    """A code object, and all code objects within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _within(const)


def _imports(code: CodeType, package: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The imports of a code object: modules, and the names imported from each."""
    loaded: list[Any] = [0, None]
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            loaded = [loaded[-1], one.argval]
        if one.opname == "IMPORT_NAME":
            level, names = loaded
            try:
                base = importlib.util.resolve_name("." * level + one.argval, package or None)
            except ImportError:
                continue  # beyond the top-level package: the import itself fails, too
            yield base, names or ()


def _with_parents(name: str) -> list[str]:
    """A module, and its parent packages, which are imported with it."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


# --- one module


class _Script(NamedTuple):
    """The program that started this process, if it is a file and not a module."""

    origin: str


def _spec(name: str) -> ModuleSpec | _Script | None:
    """The place of a module. Unlike ``importlib.util.find_spec`` it imports nothing, not even the parent package."""
    module = sys.modules.get(name)
    if module is not None:
        spec: ModuleSpec | None = getattr(module, "__spec__", None)
        path: str | None = getattr(module, "__file__", None)
        return spec if spec is not None or path is None else _Script(path)
    around, _, _ = name.rpartition(".")
    path_entries = None
    if around:
        package = _spec(around)
        if not isinstance(package, ModuleSpec) or package.submodule_search_locations is None:
            return None
        path_entries = list(package.submodule_search_locations)
    for finder in sys.meta_path:
        found = finder.find_spec(name, path_entries)
        if found is not None:
            return found
    return None


def _is_module(name: str) -> bool:
    return name in sys.modules or _spec(name) is not None


def _package(name: str) -> str:
    """The package to which relative imports of a module refer."""
    spec = _spec(name)
    if isinstance(spec, ModuleSpec):
        return spec.parent or ""
    return ""


def _code(name: str) -> CodeType | None:
    spec = _spec(name)
    if spec is None:
        return None
    if spec.origin is not None and spec.origin.endswith(".py") and Path(spec.origin).is_file():
        # Do not use the cache: two versions from the same second, of equal length, have the same cache.
        return compile(Path(spec.origin).read_bytes(), "", "exec", dont_inherit=True)
    get_code = getattr(getattr(spec, "loader", None), "get_code", None)
    if get_code is None:
        return None
    found: CodeType | None = get_code(spec.name if isinstance(spec, ModuleSpec) else name)
    return found


def _module_digest(name: str) -> str:
    spec = _spec(name)
    if spec is None:
        return _MISSING
    code = _code(name)
    if code is not None:
        return hashlib.sha256(repr(_told(code)).encode()).hexdigest()[:16]
    if spec.origin is not None and Path(spec.origin).is_file():
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:16]
    return "no code"  # a package without an __init__.py


def _told(value: object) -> object:
    """The parts of compiled code and its constants that count, in an order that does not depend on hashes."""
    if isinstance(value, CodeType):
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        counts = (
            value.co_argcount,
            value.co_posonlyargcount,
            value.co_kwonlyargcount,
            value.co_flags,
        )
        inner = [_told(one) for one in value.co_consts]
        return value.co_name, value.co_code, value.co_exceptiontable, names, counts, inner
    if isinstance(value, frozenset):
        return "frozenset", sorted(repr(_told(one)) for one in cast("frozenset[object]", value))
    if isinstance(value, tuple):
        return "tuple", [_told(one) for one in cast("tuple[object, ...]", value)]
    return type(value).__name__, repr(value)


# --- packages and files


@cache
def _library() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})


def _is_elsewhere(place: ModuleSpec | _Script) -> bool:
    """Whether a module is not a part of Python itself."""
    if place.origin in ("built-in", "frozen"):
        return False
    path = _folder(place)
    return _is_site(place) or not any(path.is_relative_to(one) for one in _library())


def _is_site(place: ModuleSpec | _Script) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(_folder(place).parts)


def _folder(place: ModuleSpec | _Script) -> Path:
    if place.origin is not None:
        return Path(place.origin).resolve()
    assert isinstance(place, ModuleSpec)
    return Path(next(iter(place.submodule_search_locations or ()), "")).resolve()


@cache
def _by_package() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _distributions(top: str) -> list[str]:
    return sorted(set(_by_package().get(top, ())))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return _MISSING


def _file_digest(module: str, name: str) -> str:
    """The digest of a data file next to the app's module, in a folder or in a zip."""
    spec = _spec(module)
    origin = None if spec is None else spec.origin
    path = str(Path(origin or "").parent / name)
    get_data = getattr(getattr(spec, "loader", None), "get_data", None)
    try:
        data = Path(path).read_bytes() if get_data is None else get_data(path)
    except OSError as error:
        raise UsageError(
            f"{name!r}, which the app names as a part of its code, cannot be read at {path!r}: {error.strerror or error}",
            hint=f"Paths in App(code_files=...) are relative to the folder of the module {module!r}.",
        ) from error
    return hashlib.sha256(data).hexdigest()[:16]
