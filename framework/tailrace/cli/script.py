"""``app.run()``: runs the command ``tailrace run`` from a script.

It calls the command itself, with the keywords as its arguments: one code path, one set of checks and
messages. It also finds the name of the app, because worker processes import the app by its name. A script
that was started as ``python ships.py`` is the module ``ships`` for them (see ``processes.app_loading``). So
it must be importable, with its call of ``app.run`` under ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import click

from tailrace.cli.main import execute
from tailrace.cli.run import run
from tailrace.cli.shadow import OF_SHADOW
from tailrace.core.declare.app import App
from tailrace.core.durations import duration
from tailrace.core.errors import UsageError
from tailrace.core.suggestions import refuse_unknown
from tailrace.processes.app_loading import check_guarded, name_of_script

_DURATIONS = ("commit_interval", "snapshot_every", "handler_warning", "grace")
"""Options that are durations: a keyword may be a number of milliseconds or a ``timedelta``."""


def run_app(app: App, options: Mapping[str, Any]) -> None:
    """Run an app like ``tailrace run``. Returns if the command exits with 0.

    Raises:
        UsageError: The app cannot be run from here: other processes could not import it, or this is not the
        main thread.
        DefinitionError: There is no such option.
        SystemExit: The command failed, and has written the error to standard error. Has the exit code of the
        command.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            "app.run was called in a thread",
            hint="Call it in the main thread, which gets the signals to stop.",
        )
    check_guarded("app.run is called")
    code = execute(arguments_of(app, options))
    if code:
        raise SystemExit(code)


def flags() -> dict[str, click.Option]:
    """The options of a service by keyword: ``until_end`` for ``--until-end``, ``as_`` for ``--as``."""
    found: dict[str, click.Option] = {}
    for option in run.params:
        if isinstance(option, click.Option) and option.name not in OF_SHADOW:
            name = option.opts[0].removeprefix("--").replace("-", "_")
            found["as_" if name == "as" else name] = option
    return found


def reference_to(app: App) -> str:
    """The reference ``module:attribute`` with which other processes find an app.
    Raises UsageError: no module has the app as an attribute; or the script that has it cannot be imported.
    """
    scripts: list[str] = []
    for name, module in reversed(list(sys.modules.items())):  # a module comes after the ones that import it
        attributes: Mapping[str, object] = getattr(module, "__dict__", {})  # sys.modules may hold any object
        attribute = next(
            (one for one, value in [*attributes.items()] if value is app and one.isidentifier()), None
        )
        if attribute is None:
            continue
        if module is not sys.modules.get("__main__"):
            return f"{name}:{attribute}"
        scripts.append(attribute)
    if not scripts:
        raise UsageError(
            f"the app {app.name!r} cannot be found by another process: no module has it as an attribute",
            hint="Assign it at the top of a module: app = tr.App(...).",
        )
    return f"{name_of_script()}:{scripts[0]}"


def arguments_of(app: App, options: Mapping[str, Any]) -> list[str]:
    """The command line that runs an app with these keywords.

    Raises:
        UsageError: A value is not of its option's kind, or no other process can find the app.
        DefinitionError: There is no such option.
    """
    known = flags()
    refuse_unknown(f"run of the app {app.name!r}", options, known)
    arguments = ["run", reference_to(app)]
    for name, value in options.items():
        option, flag = known[name], known[name].opts[0]
        if value is None:
            continue  # None means not given
        if option.is_flag:
            if type(value) is not bool:
                raise UsageError(f"{name}={value!r} is neither True nor False", hint=f"Write {name}=True.")
            arguments += [flag] if value else option.secondary_opts[:1]
        elif option.multiple:
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise UsageError(f"{name}={value!r} is not a list", hint=f"Write {name}=[...].")
            arguments += [f"{flag}={one}" for one in cast("Sequence[object]", value)]
        elif name in _DURATIONS and isinstance(value, int | timedelta):
            arguments.append(f"{flag}={duration(value)}ms")
        else:
            arguments.append(f"{flag}={os.fsdecode(value) if isinstance(value, bytes) else value}")
    return arguments
