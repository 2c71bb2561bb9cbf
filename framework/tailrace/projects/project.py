"""Writes the folder of a new service: the files of its kind, and those that all kinds have."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tailrace.core.errors import OptionError

KINDS: Final = {
    "service": "orders that are paid for or cancelled: an actor, a timer by the clock, a table",
    "windows": "revenue by the hour: windows, late events, an actor with a timer in event time",
    "faust": "takes over from a Faust app: its table, and the events that follow",
}
_TEMPLATES: Final = Path(__file__).with_name("templates")
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_TAKEN: Final = {*keyword.kwlist, *sys.stdlib_module_names, "schemas", "tests", "conftest", "setup"}


def write_project(folder: Path, kind: str) -> list[Path]:
    """Write a new service into ``folder``, all files or none. Its module has the name of the folder. Returns their relative paths.

    Raises OptionError: the name is no name of a new module, the folder is not empty, or it cannot be written.
    """
    name = folder.name
    if not _NAME.fullmatch(name) or name in _TAKEN or _is_installed(name):
        raise OptionError(
            f"{name!r} cannot be the name of a module of your own",
            hint="Use lower-case letters, digits and _, and no name of Python or of an installed package.",
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise OptionError(f"{str(folder)!r} is not empty", hint="Name a new folder.")
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as made:
            files = sorted(_written(Path(made) / name, kind))
            (Path(made) / name).rename(folder)
    except OSError as error:
        raise OptionError(
            f"{str(folder)!r} cannot be written: {error.strerror}", hint="Nothing was written."
        ) from None
    return files


def _written(made: Path, kind: str) -> list[Path]:
    """The files, written with the name of the folder in place of ``shop``."""
    files: list[Path] = []
    for template in (_TEMPLATES / "common", _TEMPLATES / kind):
        for source in template.rglob("*"):
            if source.is_dir() or source.suffix == ".pyc":
                continue
            path = source.relative_to(template)
            path = path.with_name(_named(path.name, made.name))
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text("utf-8")
            if path.name == "kubernetes.yml":  # its names have no underscores
                text = re.sub(r"\bshop\b(?!:app)", made.name.replace("_", "-"), text)
            (made / path).write_text(_named(text, made.name), "utf-8")
            shutil.copymode(source, made / path)
            files.append(path)
    return files


def _named(text: str, name: str) -> str:
    return re.sub(r"(?<![A-Za-z0-9])shop(?![A-Za-z0-9])", name, text)


def _is_installed(name: str) -> bool:
    found = find_spec(name)
    return found is not None and found.origin is not None
