"""``tailrace graph``: as text, as a picture, as JSON."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tests.cli.commands import SHOP, done, run

LEDGER = "tests.runtime.graph.market:ledger"


def test_the_suffix_of_the_output_says_what_is_written(tmp_path) -> None:
    done("graph", SHOP, "--output", tmp_path / "a.svg")
    done("graph", SHOP, "--output", tmp_path / "a.json")
    done("graph", SHOP, "--output", tmp_path / "a.txt")
    assert (tmp_path / "a.svg").read_text().startswith("<svg ")
    assert msgspec.json.decode((tmp_path / "a.json").read_bytes())["apps"][0]["name"] == "shop"
    assert (tmp_path / "a.txt").read_text() == done("graph", SHOP).out
    assert done("graph", SHOP, "--format", "svg").out == (tmp_path / "a.svg").read_text()


def test_several_apps_are_one_graph() -> None:
    assert "actor Account [ledger]" in done("graph", "tests.runtime.graph.market:app", LEDGER).out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "Missing argument 'APP...'"),
        (["nowhere:app"], 2, "there is no module 'nowhere'"),
        ([SHOP, "--format", "png"], 2, "'png' is not one of"),
        ([SHOP, "--output", "/no/such/folder/a.svg"], 1, "No such file or directory"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments, code, said) -> None:
    ended = run("graph", *arguments)
    assert ended.code == code
    (line,) = ended.err.splitlines()
    assert said in line


def test_the_command_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "tailrace", "graph", "services.sensors:app"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, said.stderr
    assert "actor Windows" in said.stdout
