"""The site and its API reference are built without a warning, and every public name is in it, with a docstring."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sphinx.pycode import ModuleAnalyzer

from tests.docs.page import ROOT

PACKAGES = ["tailrace", "tailrace.testing", "tailrace.registry", "tailrace.spark"]
DATACLASS_LIKE = {"At", "Clock", "Watermark", "Idle", "Fault", "Out", "DeadLetter"}
"""Values whose docstring describes their fields."""
ENGINE_ROOM = {"Topic", "Table", "Stream", "Actor", "Windows", "HarnessSnapshot", *DATACLASS_LIKE}
"""Classes of whose members users need none, or know them from the class."""


@pytest.mark.long
def test_the_site_is_built_without_a_warning_and_holds_every_public_name(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    found = inventory(tmp_path / "objects.inv")
    missing = [
        name
        for package in PACKAGES
        for public in importlib.import_module(package).__all__
        for name in (
            f"{package}.{public}",
            *(f"{package}.{public}.{member}" for member, _ in members(package, public)),
        )
        if name not in found
    ]
    assert not missing, f"docs/api does not hold {missing}"


def inventory(path: Path) -> set[str]:
    """The names of Python objects that a site has a place for."""
    head, _, packed = path.read_bytes().partition(b"zlib.\n")
    assert head.startswith(b"# Sphinx inventory version 2")
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split()[0] for line in lines if " py:" in line}


def members(package: str, name: str) -> Iterator[tuple[str, str]]:
    """The public methods, properties and annotated attributes of a public class, each with its docstring."""
    cls: Any = getattr(importlib.import_module(package), name)
    if not inspect.isclass(cls) or name in ENGINE_ROOM or issubclass(cls, (BaseException, list)):
        return
    for owner in cls.__mro__:
        if not owner.__module__.startswith("tailrace"):
            continue
        comments = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
        for member, value in vars(owner).items():
            function = value.fget if isinstance(value, property) else value
            if not member.startswith("_") and (
                inspect.isfunction(function) or isinstance(value, classmethod)
            ):
                yield member, inspect.getdoc(function) or ""
        for member in vars(owner).get("__annotations__", {}):
            if not member.startswith("_") and (owner.__qualname__, member) in comments:
                yield member, "\n".join(comments[owner.__qualname__, member])


def docstring(package: str, name: str) -> str:
    """The docstring of a public name; of a constant, the one below it."""
    value = getattr(importlib.import_module(package), name)
    if inspect.ismodule(value):
        return value.__doc__ or ""
    if inspect.isclass(value) or inspect.isfunction(value):
        return vars(value).get("__doc__", None) or "" if inspect.isclass(value) else value.__doc__ or ""
    for module in list(sys.modules):
        if module.startswith("tailrace.") and name in vars(sys.modules[module]):
            found = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name))
            if found:
                return "\n".join(found)
    return ""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    names = importlib.import_module(package).__all__
    silent = [name for name in names if len(docstring(package, name).split()) < 4]
    silent += [
        f"{name}.{member}"
        for name in names
        for member, text in members(package, name)
        if len(text.split()) < 3
    ]
    assert not silent, f"{package}: without a docstring: {silent}"
