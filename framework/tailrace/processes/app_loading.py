"""From ``package.module:app`` to the app: what every command and every worker process begins with.

``package.module:app@other`` is the same app under another name: it runs beside the first, with a state of its own.

A script that runs is the module of its name. ``python ships.py`` is ``__main__``, and imported as ``ships`` it would be executed
a second time, with a second app; the same holds for a process that multiprocessing has spawned, which executes the script
as ``__mp_main__``. So whoever asks for the module ``ships`` is given the script.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TailraceError, UnknownAppError, UsageError
from tailrace.core.suggestions import did_you_mean, nearest


def find_app(reference: str) -> App:
    """The app that ``package.module:attribute`` names. Modules are also looked for in the working folder.

    Raises:
        UnknownAppError: There is no such module or attribute, or it is no app; or the module fails when imported.
        DefinitionError: The app, its other name, or another declaration in its module, makes no sense.
    """
    place, at, other = reference.partition("@")
    name, colon, attribute = place.partition(":")
    if (
        (at and not other)
        or not colon
        or not all(part.isidentifier() for part in (*name.split("."), *attribute.split(".")))
    ):
        raise UnknownAppError(
            f"{reference!r} names no app",
            hint="Write the module and the app in it: package.module:app, or package.module:app@other-name.",
        )
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    module = _import(name)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UnknownAppError(
                f"the module {name!r} has no {attribute!r}",
                hint=did_you_mean(attribute, _apps_in(module), _apps_of(module, name)),
            )
        found = getattr(found, part)
    if not isinstance(found, App):
        raise UnknownAppError(
            f"{reference!r} is of type {type(found).__name__}, and no app", hint=_apps_of(module, name)
        )
    return found.renamed(other) if at else found


def plan_reading(reference: str, read: Mapping[str, str]) -> Plan:
    """The plan of an app that reads some of its inputs under other names: ``read`` has them by the declared ones.

    All that is kept of an input (positions, the tape, cuts) is then kept under the topic's name, so that nobody takes it for
    the other's. The order of the inputs stays.

    Raises:
        UsageError: The app reads no such topic, or two inputs would be the same.
    """
    plan = find_app(reference).plan()
    names = [one.name for one in plan.inputs if not one.is_inbox]
    for name in read:
        if name not in names:
            raise UsageError(
                f"the app {plan.app!r} does not read {name!r}",
                hint=did_you_mean(name, names, f"It reads {', '.join(names)}."),
            )
    inputs = tuple(replace(one, name=read.get(one.name, one.name), declared=one.name) for one in plan.inputs)
    if len({one.name for one in inputs}) < len(inputs):
        raise UsageError(
            f"two inputs of the app {plan.app!r} would be the same topic",
            hint="Name another topic for one of them.",
        )
    return replace(plan, inputs=inputs) if read else plan


def name_of_script() -> str:
    """The name under which the script that runs here can be imported elsewhere.

    Raises:
        UsageError: There is none: it is an interactive session, or its file has no name that a module can have.
    """
    script = sys.modules["__main__"]
    spec, file = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec is not None:
        return str(spec.name)
    if file is None:
        raise UsageError(
            "the app is declared in an interactive session, which another process cannot import",
            hint="Write it to a file.",
        )
    name = Path(file).stem
    if not name.isidentifier() or not _is_script(name):
        raise UsageError(
            f"the script {file} cannot be imported as the module {name!r} by another process",
            hint="Give its file another name: letters, digits and '_', and no name of an installed module.",
        )
    return name


def _is_script(name: str) -> bool:
    """Whether a module that is not imported yet is the script that runs, or that this process was spawned by."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        return False
    if name in sys.modules:
        return sys.modules[name] is sys.modules["__main__"]
    try:
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None and Path(spec.origin).samefile(file)
    except (ImportError, ValueError, OSError):
        return False  # the import itself says what is wrong


def _import(name: str) -> ModuleType:
    try:
        if name not in sys.modules and _is_script(name):
            sys.modules[name] = sys.modules["__main__"]
        return importlib.import_module(name)
    except TailraceError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or name
        if missing == name or name.startswith(f"{missing}."):
            first = missing.partition(".")[0]
            raise UnknownAppError(
                f"there is no module {missing!r}",
                hint=f"Write {name.removesuffix('.py')!r}, without the suffix of its file."
                if missing == name and name.endswith(".py")
                else _meant(missing, f"Correct the name, or start in the folder that holds {first!r}."),
            ) from None
        raise _failed(name, error) from error
    except SystemExit as error:
        raise UnknownAppError(
            f"the module {name!r} ends the program when it is imported: SystemExit: {error.code}{_place(error)}",
            hint='Put what a script does under if __name__ == "__main__".',
        ) from None
    except Exception as error:
        raise _failed(name, error) from error


def _place(error: BaseException) -> str:
    """Where in the user's code the import went wrong."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""


def _failed(name: str, error: Exception) -> UnknownAppError:
    """The error of an import, in one line."""
    place = _place(error)
    return UnknownAppError(
        f"the module {name!r} cannot be imported: {type(error).__name__}: {error}{place}",
        hint="Correct the module.",
    )


def _apps_of(module: ModuleType, name: str) -> str:
    apps = [f"{name}:{attribute}" for attribute in _apps_in(module)]
    return f"There is {', '.join(apps)}." if apps else "No app is declared there."


def _apps_in(module: ModuleType) -> list[str]:
    return [attribute for attribute, value in vars(module).items() if isinstance(value, App)]


def _meant(missing: str, more: str) -> str:
    """What a module was meant to be: one beside it in its package, or in the working folder; and then ``more``."""
    package, dot, name = missing.rpartition(".")
    places = list(sys.modules[package].__path__) if package in sys.modules else [str(Path.cwd())]
    modules = [found.name for found in pkgutil.iter_modules(places)]
    # A folder with modules is a package without an __init__.py, too.
    modules += [file.parent.name for place in places for file in Path(place).glob("*/*.py")]
    near = nearest(name, modules)
    return did_you_mean(missing, [] if near is None else [f"{package}{dot}{near}"], more)
