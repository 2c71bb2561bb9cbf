"""A law on dependencies: what the framework imports is what it says it needs, so that it runs where nothing else is."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = packages_distributions()
OWN = {"tailrace", "services", "schemas"}
# The plugin is imported by pytest, so pytest is there.
ALSO_THERE = {"framework/tailrace/testing/plugin.py": {"pytest"}}


def imported(source: str) -> set[str]:
    """The packages that a module imports, by the name of their distribution where one is installed."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    foreign = names - OWN - sys.stdlib_module_names
    return {DISTRIBUTIONS.get(name, [name])[0].lower().replace("_", "-") for name in foreign}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {requirement.partition(">")[0].strip() for requirement in project["dependencies"]}


@pytest.mark.parametrize("top", ["framework", "services", "schemas"])
def test_what_is_imported_is_declared_as_a_dependency(top: str) -> None:
    undeclared: dict[str, set[str]] = {}
    for path in sorted((ROOT / top).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        found = imported(path.read_text("utf-8")) - declared() - ALSO_THERE.get(name, set())
        if found:
            undeclared[name] = found
    assert undeclared == {}


def test_an_import_that_is_not_declared_is_found() -> None:
    assert imported("import hypothesis.strategies\nfrom pytest import raises\nimport json") == {
        "hypothesis",
        "pytest",
    }
    assert {"hypothesis", "pytest"}.isdisjoint(declared())
    assert imported("import msgspec, typing_extensions") <= declared()
