"""The README and the tutorial are run as their reader would: files written, commands typed, output compared.

A Python block is written to the file that its first line names, or appended to it (``# name.py, continued``). A block of
commands is run in a shell, in one folder per page, and what it prints must be the text block that follows, if one does.
``...`` as a line stands for any lines; times and runs of blanks do not count. A block after ``<!-- not run: why -->`` is not.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/tutorial.md"]
BLOCK = re.compile(
    r"^(?P<not_run><!-- not run: .+ -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"# (?P<name>[\w/]+\.py)(?P<continued>, continued)?\n")


class Block(NamedTuple):
    line: int
    kind: str
    text: str
    run: bool


def blocks(markdown: str) -> Iterator[Block]:
    for found in BLOCK.finditer(markdown):
        line = markdown.count("\n", 0, found.start("text"))
        yield Block(line, found["kind"], found["text"], found["not_run"] is None)


def write(block: Block, folder: Path) -> None:
    named = FILE.match(block.text)
    assert named, "a Python block does not begin with the name of its file"
    path = folder / named["name"]
    assert path.exists() or not named["continued"]
    with path.open("a" if named["continued"] else "w", encoding="utf-8") as file:
        file.write("\n\n" + block.text if named["continued"] else block.text)


def type_in(commands: str, folder: Path) -> tuple[int, str]:
    """What a shell prints, and its exit code."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))
    }
    environment |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "framework"),
        "PYTHONDONTWRITEBYTECODE": "1",  # a file replaced within a second must not be taken for the old one
        "COLUMNS": "80",
    }
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", commands],
        check=False,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def as_pattern(shown: str) -> str:
    lines = [r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in plain(shown)]
    return "".join(lines)


def plain(output: str) -> list[str]:
    timeless = re.sub(r"\b\d+\.\d+s\b", "<time>", output.strip())
    return [re.sub(r"\s+", " ", line) for line in timeless.splitlines()]


def play(markdown: str, folder: Path) -> int:
    """Do what a page says; returns how many outputs were compared."""
    compared = 0
    printed: tuple[int, str] | None = None
    for block in blocks(markdown):
        if block.kind == "text" and block.run:
            assert printed is not None, f"line {block.line}: nothing has been run before this output"
            found = "".join(f"{line}\n" for line in plain(printed[1]))
            assert re.fullmatch(as_pattern(block.text), found), (
                f"line {block.line}: it prints\n{printed[1]}\n, not\n{block.text}"
            )
            failed = "Error" in block.text
            assert (printed[0] != 0) is failed, f"line {block.line}: exit code {printed[0]}"
            compared += 1
        elif printed is not None:
            assert printed[0] == 0, f"before line {block.line}: a command has failed:\n{printed[1]}"
        printed = None
        if block.kind == "python":
            write(block, folder)
        elif block.kind == "sh" and block.run:
            printed = type_in(block.text, folder)
        else:
            assert block.kind in ("text", "sh"), f"line {block.line}: what is {block.kind!r}?"
    assert printed is None, f"nothing is shown of what the last command prints:\n{printed}"
    return compared


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_is_what_happens(page: str, tmp_path: Path) -> None:
    assert play((ROOT / page).read_text("utf-8"), tmp_path) >= 1


HELLO = "```python\n# hello.py\nprint('hello')\n```\n\n```sh\npython hello.py\n```\n\n```text\n{}\n```\n"


def test_an_output_that_is_not_so_is_found(tmp_path: Path) -> None:
    assert play(HELLO.format("hello"), tmp_path) == 1
    with pytest.raises(AssertionError, match="it prints"):
        play(HELLO.format("goodbye"), tmp_path)


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    broken = HELLO.replace("print('hello')", "raise SystemExit(3)")
    with pytest.raises(AssertionError, match="exit code 3"):
        play(broken.format("..."), tmp_path)


def test_a_code_block_that_nobody_runs_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not begin with the name of its file"):
        play("```python\nprint()\n```\n", tmp_path)
