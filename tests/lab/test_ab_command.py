"""``tailrace ab`` as a command: versions in processes of their own, revisions, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.errors import UsageError
from tailrace.lab.versions import About, Version, placed
from tests.cli.commands import done, run
from tests.history.rebuilding import lived, shops
from tests.lab import selling
from tests.runtime.processes import wait_until

SOLD = "self.cents += event.cents"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose first revision has run; the second adds a cent to one sale; the folder holds a third."""
    folder = tmp_path_factory.mktemp("repository")
    lived.append(folder, shops.sales(60), {"sales": 2})
    lived.live_on(folder, "tests.lab.selling:app")

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *arguments], cwd=folder / "code", check=True)

    changes = [(), ((SOLD, f"{SOLD} + (event.at == 1_500)"),), ((SOLD, f"{SOLD} + 2 * (event.at == 1_500)"),)]
    for number, some in enumerate(changes):
        selling.version(folder / "code", "shop", *some)
        if number == 0:
            (folder / "code" / "deploy").mkdir()
            (folder / "code" / "deploy" / "notes.txt").touch()
            git("init", "--quiet", "--initial-branch", "first")
        if number < 2:
            (folder / "code" / "requirements.txt").write_text("msgspec\n" * number)
            git("add", ".")
            git("commit", "--quiet", "-m", f"number {number}")
            git("tag", f"number-{number}")
    return folder


def work_trees(repository: Path) -> list[str]:
    found = subprocess.run(
        ["git", "worktree", "list"], cwd=repository / "code", capture_output=True, text=True, check=True
    )
    return found.stdout.splitlines()


def compared(
    repository: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path
) -> tuple[int, dict[str, Any]]:
    monkeypatch.chdir(repository / "code")
    ended = run("ab", *arguments, "--log", repository / "log", "--workers", 1, "--json")
    return ended.code, json.loads(ended.out)


@pytest.mark.long
def test_revisions_and_the_folder_are_compared(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report = compared(
        repository, monkeypatch, "number-0:shop:app", "number-1:shop.py:app", "--to", tmp_path / "one"
    )
    assert (code, report["noise"], report["order"]) == (0, [], "stages")
    assert [(one["field"], one["keys"], one["mean"]) for one in report["fields"]] == [("cents", 1, 1.0)]
    assert "requirements.txt" in str(report["a"])
    assert "requirements.txt" not in str(report["b"])
    code, report = compared(
        repository, monkeypatch, "number-0:shop:app", "shop:app", "--to", tmp_path / "two"
    )
    assert [(one["field"], one["keys"], one["mean"]) for one in report["fields"]] == [("cents", 1, 2.0)]
    assert len(work_trees(repository)) == 1


def test_code_that_depends_on_hashes_is_noise_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, shops.sales(60), {"sales": 2, "totals": 2})
    set_order = 'self.cents += int(next(iter({"1", "2", "3", str(event.cents)})))'
    selling.version(tmp_path / "code", "hashes", (SOLD, set_order))
    monkeypatch.chdir(tmp_path / "code")
    where = ("ab", "hashes:app", "hashes:app", "--log", tmp_path / "log", "--workers", 1)
    ended = run(*where, "--to", tmp_path / "out", "--json")
    report = json.loads(ended.out)
    assert (ended.code, report["order"]) == (2, "stages")
    assert report["counts"]["keys_differ"] == 0
    assert "keys of A differ between two runs of A" in report["noise"][0]
    assert done(*where, "--to", tmp_path / "two", "--noisy").out.startswith("NOISE: ")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_work_tree_of_a_revision_is_removed_if_the_command_is_stopped(
    repository: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    """While the versions start, or within a rebuild."""
    command = ("ab", "number-0:shop:app", "shop:app", "--log", repository / "log", "--to", tmp_path / "out")
    trees = tmp_path / "trees"
    trees.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-m", "tailrace", *map(str, command)],
        cwd=repository / "code",
        env={**os.environ, "TMPDIR": str(trees)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: list(trees.glob("tailrace-ab-*/*/shop.py")), "there is a work tree")
        running.send_signal(sent)
        running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert not list(trees.glob("tailrace-ab-*"))
    assert len(work_trees(repository)) == 1


def test_a_work_tree_that_git_was_killed_in_making_is_removed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "code")
    with ExitStack() as closing:
        placed("number-0:shop:app", closing)
        (tree,) = (one for one in work_trees(repository) if "tailrace-ab-" in one)
        subprocess.run(["git", "worktree", "lock", tree.split()[0]], check=True)
    assert len(work_trees(repository)) == 1


def test_an_interpreter_without_tailrace_is_named(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "code")
    arguments = ("ab", "shop:app", "shop:app", "--log", repository / "log", "--to", tmp_path / "out")
    assert "cannot be started" in run(*arguments, "--python-b", tmp_path / "nothing").err
    assert "the process of B ended with exit code" in run(*arguments, "--python-b", "/bin/false").err


def code_of(version: str) -> str:
    """The digest of the code that the process of a version has."""
    with ExitStack() as stack:
        place = placed(version, stack)
        process = Version("A", place)
        stack.callback(process.close)
        return process.ask("about", About, reference=place.reference).code


def test_a_revision_has_its_own_code_if_another_folder_of_the_repository_is_on_the_path(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "code" / "deploy")
    monkeypatch.setenv("PYTHONPATH", str(repository / "code"))
    versions = ("number-0:shop:app", "number-1:shop:app", "shop:app")
    assert len({code_of(one) for one in versions}) == 3


def test_a_revision_whose_module_comes_from_the_folder_itself_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some editable installs have a finder of modules, and no folder on the path."""
    file = repository / "code" / "shop.py"
    (tmp_path / "sitecustomize.py").write_text(f"""
import sys, importlib.util
class Editable:
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {str(file)!r}) if name == "shop" else None
sys.meta_path.append(Editable)
""")
    monkeypatch.chdir(repository / "code" / "deploy")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UsageError, match=f"A: the module 'shop' of the revision is loaded from {file}"):
        code_of("number-0:shop:app")
    assert code_of("shop:app")


def test_the_index_of_a_commit_that_a_hook_belongs_to_stays_as_it_is(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.write_bytes((repository / "code" / ".git" / "index").read_bytes())
    before = index.read_bytes()
    monkeypatch.chdir(repository / "code" / "deploy")
    for name, value in (("GIT_INDEX_FILE", index), ("GIT_DIR", repository / "code" / ".git")):
        monkeypatch.setenv(name, str(value))
    with ExitStack() as stack:
        assert placed("number-0:shop:app", stack).root.name == "deploy"
    assert index.read_bytes() == before
