"""`tailrace new`: the folder of each kind is a service whose tests and types pass as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.cli.main import execute
from tailrace.projects.project import KINDS

BIN = Path(sys.executable).parent


def new(*arguments: object, folder: Path) -> int:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return execute(["new", *map(str, arguments)])
    finally:
        os.chdir(before)


def checked(project: Path, *command: object) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=project, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(folder: Path) -> dict[str, str]:
    return {str(one.relative_to(folder)): one.read_text() for one in folder.rglob("*") if one.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_its_tests_and_types_pass_at_once(kind: str, tmp_path: Path) -> None:
    assert new("dept_store", "--kind", kind, folder=tmp_path) == 0
    project = tmp_path / "dept_store"
    assert "passed" in checked(project, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    checked(project, BIN / "mypy", "--cache-dir", tmp_path / "mypy", ".")
    checked(project, BIN / "basedpyright", "--pythonpath", sys.executable, ".")


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_stands_wherever_the_template_has_its_own(kind: str, tmp_path: Path) -> None:
    assert new("dept_store", "--kind", kind, folder=tmp_path) == 0
    files = files_of(tmp_path / "dept_store")
    assert {"dept_store.py", "tests/test_dept_store.py", "pyproject.toml", "README.md"} <= {*files}
    assert {"Dockerfile", "compose.yml", "kubernetes.yml", ".github/workflows/ci.yml"} <= {*files}
    assert not [path for path, text in files.items() if "shop" in text.lower() or "shop" in path]
    names = [line for line in files["kubernetes.yml"].splitlines() if "name: " in line]
    assert names
    assert not [line for line in names if "dept_store" in line], "Kubernetes takes no underscores"
    assert len(files["README.md"].splitlines()) <= 20


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my-shop", "cannot be the name of a module"),
        ("Shop", "cannot be the name of a module"),
        ("shop_", "cannot be the name of a module"),
        ("7up", "cannot be the name of a module"),
        ("класс", "cannot be the name of a module"),
        ("class", "cannot be the name of a module"),
        ("json", "cannot be the name of a module"),
        ("tailrace", "cannot be the name of a module"),
        ("msgspec", "cannot be the name of a module"),
        ("schemas", "cannot be the name of a module"),
        ("full", "is not empty"),
        ("file", "cannot be written"),
        ("nowhere/shop", "cannot be written"),
        ("file/shop", "cannot be written"),
        (".", "cannot be the name of a module"),
    ],
)
def test_what_cannot_be_made_is_a_sentence_and_nothing_is_written(
    name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert new(name, folder=tmp_path) == 2
    output = capsys.readouterr()
    assert says in output.err
    assert output.err.count("\n") == 1
    assert not output.out
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_the_right_to_write_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    before = os.geteuid()
    if before == 0:  # root may write everywhere
        tmp_path.chmod(0o755)
        monkeypatch.chdir(tmp_path / "locked")
        os.seteuid(65534)
    try:
        assert execute(["new", "shop"] if before == 0 else ["new", str(tmp_path / "locked" / "shop")]) == 2
    finally:
        os.seteuid(before)
    assert capsys.readouterr().err.endswith(
        "'shop' cannot be written: Permission denied. Nothing was written.\n"
    )
    assert not [*(tmp_path / "locked").iterdir()]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    assert new("shop", folder=tmp_path) == 0
    assert (tmp_path / "shop" / "shop.py").exists()


def test_the_list_names_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new("--list", folder=tmp_path) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*KINDS]
    assert not [*tmp_path.iterdir()]
