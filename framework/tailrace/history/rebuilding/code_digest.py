"""The code of a rebuild: digests of the app's sources, and the versions of what is installed.

A state that is half by one code and half by another is the result of neither. So a rebuild records its code when it
begins, only the same code resumes it, and each process compares its own code before it runs a unit of work. The parts::

    sources NAME          one digest of all ``.py`` files of a top-level package or module of the app's own
    names beside the app  which modules and packages lie in its folder
    package NAME          the version of an installed distribution
    app, environment      version and partitions; Python, msgspec, time zones

The app's own code is the top-level packages that declare the app and its handlers, and all that are loaded once the app
is and were not installed: of a script, the modules that it has imported, from whatever folder. Files count by their path
below the package and their bytes, so a moved checkout and a zip are the same code, and a changed comment is other code.

Not detected: environment variables, files other than ``.py``, and modules beside the package that a handler imports
only when it is called. Raise the version of the app (``tr.App(version=...)``) with these.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from pkgutil import iter_modules

from tailrace.core.declare.emissions import code_root
from tailrace.core.declare.plan import Plan
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import environment

_NOT_OWN = frozenset({"__main__", "__mp_main__", "tailrace", "pyspark", "py4j"})
"""The first two are names of the running script. Its own name is that of the module in the app's reference. Spark may be in no
environment.
"""

_MISSING = "not there"


def code_of(reference: str, plan: Plan) -> dict[str, str]:
    """The parts of the code of the app that ``package.module:app`` names, whose plan is ``plan``."""
    functions = find_app(reference).functions.values()
    modules = {one.cls.__module__ for one in plan.actors} | {one.call.__module__ for one in functions}
    own = _top_levels(modules | {reference.partition(":")[0]})
    roots = {root for one in own if "/" in (root := code_root(one))}
    loaded = {one for one in _top_levels(sys.modules) - sys.stdlib_module_names if "/" in code_root(one)}
    own |= {one for one in loaded if not one.startswith("_sysconfigdata")}
    parts = {"app version": plan.version, "app partitions": str(plan.partitions)}
    parts |= {f"environment {name}": value for name, value in environment().items()}
    parts |= {f"sources {name}": _digest(name) for name in own}
    # What can be imported from their folders, or zips, at their top level.
    parts["names beside the app"] = " ".join(sorted({one.name for one in iter_modules(sorted(roots))}))
    return parts | {f"package {name}": version for name, version in _installed().items()}


def differences(noted: Mapping[str, str]) -> list[str]:
    """The recorded sources, and packages that this process has loaded, that differ here.

    What is not there does not count: it may not be needed, and if it is, its import fails.
    """
    loaded = {name for top in _top_levels(sys.modules) for name in _distributions().get(top, ())}
    here = {f"package {name}": version for name, version in _installed().items() if name in loaded}
    names = (part.removeprefix("sources ") for part in noted if part.startswith("sources "))
    here |= {f"sources {name}": _digest(name) for name in names}
    return [part for part, value in noted.items() if here.get(part, value) not in (value, _MISSING)]


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts in which two codes differ.

    Sources that only one of them has do not count: a process may have loaded more. If the app began to import them in between,
    the importing sources differ, or the names beside the app.
    """
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return sorted(
        one for one in differing if not one.startswith("sources ") or (one in before and one in now)
    )


def _top_levels(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} - _NOT_OWN


@cache
def _installed() -> Mapping[str, str]:
    """The versions of the distributions, by name. Of two with one name, Python imports the first."""
    return {one.name: one.version for one in reversed([*metadata.distributions()])}


_distributions = cache(metadata.packages_distributions)


def _digest(name: str) -> str:
    """Of the sources of a top-level package or module, which need not be loaded."""
    digest = hashlib.sha256()
    found = (finder.find_spec(name, None) for finder in sys.meta_path)
    spec = next((one for one in found if one is not None), None)
    if spec is None:
        return _MISSING
    # A package without __init__.py has a place twice if a folder is on the path twice.
    places = set(spec.submodule_search_locations or filter(None, [spec.origin]))
    for path, source in sorted(file for place in places for file in _sources(place)):
        digest.update(f"{path} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


def _sources(place: str) -> Iterator[tuple[str, bytes]]:
    """The ``.py`` files of a folder, or one file, with their paths from there. The place may be in a zip."""
    zip_file = next((one for one in Path(place).parents if one.is_file()), None)
    if zip_file is not None:
        inner = Path(place).relative_to(zip_file).as_posix()
        with zipfile.ZipFile(zip_file) as zipped:
            names = [name for name in zipped.namelist() if f"{name}/".startswith(f"{inner}/")]
            yield from (
                (name.removeprefix(inner), zipped.read(name)) for name in names if name.endswith(".py")
            )
    elif place.endswith(".py"):
        yield "", Path(place).read_bytes()
    else:
        files = (f"{folder}/{name}" for folder, _, names in os.walk(place) for name in names)
        yield from (
            (file.removeprefix(place), Path(file).read_bytes()) for file in files if file.endswith(".py")
        )
