"""A law on dependencies: what the framework imports is what it says it needs, so that it runs where nothing else is."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tailrace.log.embedded import EmbeddedLog

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = packages_distributions()
NEWER = {"annotationlib"}
"""What the standard library of a newer Python has, and that of the oldest has not."""
OWN = {"tailrace", "services", "schemas"}
# The plugin is imported by pytest, so pytest is there.
ALSO_THERE = {"framework/tailrace/testing/plugin.py": {"pytest"}}
# Rooms that are an extra's: they may import it at once, as nothing else imports them unless it is asked for.
ROOM_OF = {
    "framework/tailrace/spark/": "spark",
    "framework/tailrace/faust/service.py": "faust",
    "framework/tailrace/serve/web.py": "http",
    "framework/tailrace/http/": "http",
    "framework/tailrace/runtime/http_answers.py": "http",
    "framework/tailrace/serve/page/": "http",
    "services/lab/": "lab",
    "services/lab/routes.py": "spark",
    "services/lab/training.py": "spark",
}


def imported(source: str) -> set[str]:
    """The packages that a module imports, by the name of their distribution where one is installed."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    foreign = names - OWN - sys.stdlib_module_names - NEWER
    return {DISTRIBUTIONS.get(name, [name])[0].lower().replace("_", "-") for name in foreign}


def declared(extra: str | None = None) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    requirements = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return {requirement.partition(">")[0].strip() for requirement in requirements}


def also_there(name: str) -> set[str]:
    extras = [declared(extra) for room, extra in ROOM_OF.items() if name.startswith(room)]
    # What a package hands out of one that it needs itself.
    handed_on = {"py4j"} if any("pyspark" in one for one in extras) else set[str]()
    handed_on |= {"mode-streaming"} if any("faust-streaming" in one for one in extras) else set[str]()
    return ALSO_THERE.get(name, set()) | handed_on | {one for found in extras for one in found}


@pytest.mark.parametrize("top", ["framework", "services", "schemas"])
def test_what_is_imported_is_declared_as_a_dependency(top: str) -> None:
    undeclared: dict[str, set[str]] = {}
    own = (one for one in (ROOT / top).rglob("*.py") if "templates" not in one.parts)
    for path in sorted(own):
        name = path.relative_to(ROOT).as_posix()
        found = imported(path.read_text("utf-8")) - declared() - also_there(name)
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


def test_without_the_extras_the_commands_are_there_and_say_what_is_missing(tmp_path: Path) -> None:
    """In a process in which they cannot be imported; nothing that works without them imports them."""
    EmbeddedLog(tmp_path / "log").close()
    script = f"""
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyarrow", "pyspark", "pandas", "numpy", "confluent_kafka", "faust"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuses())
import tailrace.spark, tailrace.state.snapshots, tailrace.testing.harness
from tailrace.cli.main import execute
assert execute(["--help"]) == 0
for command in (
    ["snapshot", "list", "app", "--snapshots", {str(tmp_path)!r}],
    ["rebuild", "services.sensors:app", "--log", {str(tmp_path)!r}, "--engine", "spark"],
    ["archive", "--log", {str(tmp_path / "log")!r}, "--to", {str(tmp_path / "archive")!r}],
):
    print(execute(command))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("pip install 'tailrace[parquet]'") == 2, done.stderr
