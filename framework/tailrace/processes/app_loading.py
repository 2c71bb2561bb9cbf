"""Loads the app that ``package.module:app`` names. Every command and every worker process begins with this.

``package.module:app@other`` is the same app under another name, with its own state. Both can run at the same time.

A running script counts as the module of its name. ``python ships.py`` runs as ``__main__``. An import of ``ships`` would
execute the file a second time and make a second app. The same happens in a process spawned by multiprocessing, which executes
the script as ``__mp_main__``. So a reference to the module ``ships`` uses the running script.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from tailrace.core.declare.app import App
from tailrace.core.errors import DefinitionError, TailraceError, UnknownAppError, UsageError
from tailrace.core.suggestions import did_you_mean


def find_app(reference: str) -> App:
    """The app that ``package.module:attribute`` names. The working folder is also searched for modules.

    Raises:
        UnknownAppError: There is no such module or attribute, or it is not an app; or the import of the module fails; or the other
            name cannot be that of an app.
        DefinitionError: The app, or another declaration in its module, is invalid.
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
            hint=_meant_file(name, attribute)
            or "Write the module and the app in it: package.module:app, or package.module:app@other-name.",
        )
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # behind what is installed, which no file here can replace
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
    try:
        return found.renamed(other) if at else found
    except DefinitionError as error:
        raise UnknownAppError(error.what, hint=error.hint) from None


def name_of_script() -> str:
    """The module name under which other processes can import the running script.
    Raises UsageError: there is no such name: this is an interactive session, or the name of the file is not
    valid for a module.
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
    """Whether a module is the running script, or the script that spawned this process."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        return False
    if name in sys.modules:
        return sys.modules[name] is sys.modules["__main__"]
    try:
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None and Path(spec.origin).samefile(file)
    except (ImportError, ValueError, OSError):
        return False  # the import itself reports the error


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
                else f"Correct the name, or start in the folder that holds {first!r}.",
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
    """Where in the user's code the import failed."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""


def _failed(name: str, error: Exception) -> UnknownAppError:
    """The error of a failed import, in one line."""
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


def _meant_file(path: str, attribute: str) -> str:
    """A suggestion for the path of a file in place of a module; empty if there is no such file in the working folder."""
    name = Path(path).with_suffix("") if path.endswith(".py") else Path(path)
    parts = name.parts
    if not parts or not all(part.isidentifier() for part in parts) or not name.with_suffix(".py").is_file():
        return ""
    return f"Did you mean '{'.'.join(parts)}:{attribute or 'app'}'?"


_GUARD: Final = 'Put the call under if __name__ == "__main__".'


def check_guarded(what: str) -> None:
    """Check that an import of the calling script does not get to this place. ``what`` happens here: "app.run is called".

    A process that is started with "spawn" imports the main script of its parent. So the place that starts processes must be under
    ``if __name__ == "__main__"``; otherwise multiprocessing ends the child with an error that does not name the cause.
    Raises UsageError: the import would get here.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None:
        return
    name = frame.f_globals.get("__name__")
    if name != "__main__":
        spec = frame.f_globals.get("__spec__")
        if name != "__mp_main__" and not getattr(spec, "_initializing", False):
            return  # not called during an import
        raise UsageError(f"{what} while the module {name!r} is imported", hint=_GUARD)
    file = frame.f_globals.get("__file__")
    if file is None or not Path(file).is_file():
        return  # an interactive session, or a program in a zip file
    if not any(
        node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(Path(file).read_bytes()))
        if isinstance(node, ast.If | ast.IfExp) and "__name__" in ast.unparse(node.test)
    ):
        raise UsageError(
            f"{what} at {file}:{frame.f_lineno} whenever the script is imported, as by each process that it starts",
            hint=_GUARD,
        )
