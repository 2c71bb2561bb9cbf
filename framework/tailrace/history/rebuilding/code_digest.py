"""The code of a rebuild: the sources of all modules that the app's handlers can reach, and the versions of what these import.

Theory. A state that is half by one code and half by another is the result of neither. So a rebuild records its code when it
begins, only the same code resumes it, and each process compares its own code before it runs a unit of work. The parts::

    module NAME       the digest of the source of one of the app's own modules
    package NAME      the version of an installed distribution that an own module imports; its modules are not read
    file NAME         the digest of a data file that ``App(code_files=...)`` names
    app, environment  version and partitions; Python, msgspec, time zones, tailrace

A module is *own* if it is in a top-level package of the app or its handlers, wherever that is installed, or if it is neither
installed nor in the standard library. These own modules count::

    the modules of the app and of its handlers
    a module that one of them imports, in whatever function the statement is
    the packages above a module of these, as their ``__init__`` runs first
    all modules below its top-level package, if a module may import others by a computed name, or cannot be parsed

So the parts depend on sources only, not on what the process has imported. Nothing is imported to find them. Every comment
counts: a digest that changes too often is safe, as the rebuild begins again. These do not count: environment variables, files
that are not named, and a module in another top-level package that is imported by a computed name.
"""

from __future__ import annotations

import ast
import hashlib
import pkgutil
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec, all_suffixes
from importlib.resources.abc import Traversable
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import UsageError
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import environment

_MISSING = "not there"
_SUFFIXES = tuple(all_suffixes())
_COMPUTED = frozenset({"__import__", "exec", "exec_module", "import_module", "run_module", "run_path"})
"""Code that uses one of these names may import modules that no import statement names."""
_LIBRARY = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_NOT_OWN = frozenset({"__main__", "__mp_main__", "tailrace"})
"""The first two are names of the running script. Its own name is that of the module in the app's reference."""


def code_of(reference: str, plan: Plan) -> dict[str, str]:
    """The parts of the code of the app that ``package.module:app`` names, whose plan is ``plan``.

    Raises:
        UsageError: A file that the app names as a part of its code cannot be read.
    """
    app, module = find_app(reference), reference.partition(":")[0]
    parts = {"app version": plan.version, "app partitions": str(plan.partitions)}
    parts |= {f"environment {name}": value for name, value in environment().items()}
    parts["package tailrace"] = _version("tailrace")
    declared = {one.cls.__module__ for one in plan.actors}
    declared |= {one.call.__module__ for one in app.functions.values()}
    waiting = {name for name in (module, *declared) if _top(name) not in _NOT_OWN}
    is_own = {_top(name): True for name in waiting}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        top = _top(name)
        if top not in is_own:
            is_own[top] = _is_own(top)
            parts |= {f"package {one}": _version(one) for one in _distributions(top)}
        if is_own[top]:
            spec = _spec(name)
            if spec is not None and spec.origin is not None:
                parts[f"module {name}"] = _module_digest(name)
            waiting |= _reached(name, spec) - seen
    return parts | {f"file {name}": _file_digest(module, name) for name in app.code_files}


def differences(reference: str, noted: Mapping[str, str]) -> list[str]:
    """The recorded modules, packages and files that differ in this process. Parts that are not in ``noted`` are ignored."""
    module = reference.partition(":")[0]
    here: dict[str, Callable[[str], str]] = {
        "module": _module_digest,
        "package": _version,
        "file": lambda name: _file_digest(module, name),
    }
    split = [(part, *part.split(" ", 1)) for part in noted]
    return [part for part, kind, name in split if kind in here and here[kind](name) != noted[part]]


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts in which two codes differ."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


_PARSING = threading.Lock()
"""Python 3.11 may fail to parse in several threads at once ("AST constructor recursion depth mismatch")."""

# --- from module to module. "NAME.*" stands for all modules below the package NAME


def _top(name: str) -> str:
    return name.partition(".")[0]


def _reached(name: str, spec: ModuleSpec | None) -> set[str]:
    """The names that an own module makes a part of the code. Some of them are not modules."""
    above, _, last = name.rpartition(".")
    found = {above} - {""}
    if last == "*":
        found.update(_below(above))
    elif spec is not None and spec.origin is not None:
        package = above if spec.submodule_search_locations is None else name
        try:
            source = _data(spec, spec.origin)
            with _PARSING:
                parsed = ast.parse(source)
            for node in ast.walk(parsed):
                found.update(_imports(node, package or name))
        except (SyntaxError, ValueError, ImportError):  # compiled, or it cannot be imported
            found.add(f"{_top(name)}.*")
    return found


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import():
            yield from (one.name for one in node.names)
        case ast.ImportFrom():
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (base, *(f"{base}.{one.name}" for one in node.names))
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) if name in _COMPUTED:
            yield f"{_top(package)}.*"
        case _:
            pass


def _spec(name: str) -> ModuleSpec | None:
    """The place of a module, in a folder or in a zip. Nothing is imported. None: there is no such module."""
    above = name.rpartition(".")[0]
    if not above:
        found = (finder.find_spec(name, None) for finder in sys.meta_path)
        return next((spec for spec in found if spec is not None), None)
    package = _spec(above)
    portions: list[str] = []
    for location in (package and package.submodule_search_locations) or ():
        finder: Any = pkgutil.get_importer(location)
        spec: ModuleSpec | None = finder and finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _below(package: str) -> Iterator[str]:
    spec = _spec(package)
    for location in (spec and spec.submodule_search_locations) or ():
        yield from _modules(_opened(Path(location)), package)


def _opened(folder: Path) -> Traversable:
    """A folder of a package, also within a zip."""
    if folder.is_dir():
        return folder
    archive = next((one for one in folder.parents if one.is_file()), None)
    return folder if archive is None else zipfile.Path(archive, f"{folder.relative_to(archive).as_posix()}/")


def _modules(folder: Traversable, package: str) -> Iterator[str]:
    for one in folder.iterdir():
        name = f"{package}.{one.name.partition('.')[0]}"
        if one.is_dir() and one.name.isidentifier() and one.name != "__pycache__":
            yield from _modules(one, name)
        elif one.is_file() and one.name.endswith(_SUFFIXES):
            yield name.removesuffix(".__init__")


def _module_digest(name: str) -> str:
    spec = _spec(name)
    return _MISSING if spec is None or spec.origin is None else _digest(_data(spec, spec.origin))


# --- installed packages and files


@cache
def _by_package() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _folder(top: str) -> Path | None:
    """Where a top-level module is. None: it is built in, or not there."""
    spec = _spec(top)
    if spec is None or spec.origin in ("built-in", "frozen"):
        return None
    return Path(spec.origin or next(iter(spec.submodule_search_locations or ()), "")).parent


def _is_site(folder: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(folder.parts)


def _is_own(top: str) -> bool:
    """Whether the sources of an imported module count: it is neither installed, nor a part of Python or Tailrace."""
    folder = _folder(top)
    if folder is None or top == "tailrace" or _distributions(top):
        return False
    return _is_site(folder) or not any(folder.resolve().is_relative_to(one) for one in _LIBRARY)


def _distributions(top: str) -> list[str]:
    """The distributions of an installed package. One that is installed in place (``pip install -e``) counts by its sources."""
    folder = _folder(top)
    return sorted(set(_by_package().get(top, ()))) if folder is not None and _is_site(folder) else []


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return _MISSING


def _data(spec: ModuleSpec | None, path: str) -> bytes:
    get_data: Any = getattr(getattr(spec, "loader", None), "get_data", None)
    data: bytes = Path(path).read_bytes() if get_data is None else get_data(path)
    return data


def _file_digest(module: str, name: str) -> str:
    """The digest of a data file next to the app's module, in a folder or in a zip."""
    spec = sys.modules[module].__spec__
    path = str(Path(sys.modules[module].__file__ or "").parent / name)
    try:
        return _digest(_data(spec, path))
    except OSError as error:
        raise UsageError(
            f"{name!r}, which the app names as a part of its code, cannot be read at {path!r}: {error.strerror or error}",
            hint=f"Paths in App(code_files=...) are relative to the folder of the module {module!r}.",
        ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
