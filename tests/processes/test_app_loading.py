"""Where the module of an app is searched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.processes.app_loading import find_app


def test_no_file_of_the_working_folder_takes_the_place_of_an_installed_module(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise SystemExit('this is not rich')")
    (tmp_path / "one.py").write_text("import tailrace as tr\nfrom tests.cli.shop import app\n")
    command = (
        "from tailrace.processes.app_loading import find_app; print(find_app('one:app').name); import rich"
    )
    root = Path(__file__).parents[2]
    given = {"PYTHONPATH": f"{root / 'framework'}:{root}"}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", command],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "shop\n"), ended.stderr


def test_the_working_folder_is_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    monkeypatch.chdir(tmp_path)
    find_app("tests.cli.shop:app")
    assert sys.path[-1] == str(tmp_path)
