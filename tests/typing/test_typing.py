"""A wrong handler is a type error, and a right one is none: what users write, held against both type checkers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"
FRAMEWORK = Path(__file__).parents[2] / "framework"
MARK = "# error"

Errors = dict[str, dict[int, list[str]]]
"""What a checker says, by file and line."""


def marked(path: Path) -> set[int]:
    lines = path.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(MARK)}


def run(module: str, *arguments: str) -> str:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed for this Python")
    environment = {**os.environ, "MYPYPATH": str(FRAMEWORK)}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def by_mypy(tmp_path: Path) -> Errors:
    cases = [str(path) for path in sorted(CASES.glob("*.py"))]
    output = run(
        "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}",
        "--output=json", "--no-incremental", *cases,
    )  # fmt: skip
    found: Errors = {}
    for line in output.splitlines():
        said = json.loads(line)
        if said["severity"] == "error":
            found.setdefault(Path(said["file"]).name, {}).setdefault(said["line"], []).append(said["message"])
    return found


def by_pyright(tmp_path: Path) -> Errors:
    config = {
        "typeCheckingMode": "strict",
        "include": [str(CASES)],
        "extraPaths": [str(FRAMEWORK)],
        "pythonVersion": "{}.{}".format(*sys.version_info),
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(config))
    output = run("basedpyright", "--pythonpath", sys.executable, "-p", str(project), "--outputjson")
    found: Errors = {}
    for said in json.loads(output)["generalDiagnostics"]:
        if said["severity"] == "error":
            line = said["range"]["start"]["line"] + 1
            found.setdefault(Path(said["file"]).name, {}).setdefault(line, []).append(said["message"])
    return found


@pytest.mark.parametrize("checker", [by_mypy, by_pyright])
def test_a_wrong_handler_is_a_type_error_and_a_right_one_is_none(checker, tmp_path: Path) -> None:
    found = checker(tmp_path)
    assert found.get("accepted.py", {}) == {}
    refused, expected = found["refused.py"], marked(CASES / "refused.py")
    assert {line: refused[line] for line in sorted(set(refused) - expected)} == {}
    assert sorted(expected - set(refused)) == []


def test_there_is_something_to_refuse() -> None:
    assert len(marked(CASES / "refused.py")) > 30
