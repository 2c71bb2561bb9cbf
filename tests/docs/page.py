"""A page of documentation, run as its reader would: files written and changed, commands typed, output compared.

================  ==============================================================================================
``python``        is written to the file that its first line names, or appended to it (``# name.py, continued``)
``diff``          is made to the file that its first line names (``--- name.py``); ``@@`` stands between two places
``sh``            is typed into a shell, which is one for the whole page: what it started in the background goes on
``text``          is what the commands before it print
================  ==============================================================================================

In a text ``...`` as a line stands for any lines; times, rates, ids of snapshots, the folder that the page is played in and
runs of blanks do not count. A comment before a block
says what else is not as it seems: ``<!-- not run: why -->``, ``<!-- any numbers: 19, 51 -->`` (where these stand, there
may be others), ``<!-- any numbers -->``, ``<!-- it fails -->`` (the exit code is not 0). Two of them: ``; `` between.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"^(?:<!-- (?P<remarks>(?:not run: |any numbers|it fails)[^\n]*) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# (?P<name>[\w/]+\.py)(?P<continued>, continued)?\n")
CHANGED = re.compile(r"--- (?P<name>[\w/]+\.py)\n")
NUMBER = r"\d+(?:,\d{3})*"
LONGEST_S = 600
"""Generous: it only passes where something is broken, or the machine is very busy."""


class Block(NamedTuple):
    line: int
    kind: str
    text: str
    run: bool
    fails: bool
    any_numbers: frozenset[str] | None
    """The numbers that may be others; None: all."""


def blocks(markdown: str) -> Iterator[Block]:
    for found in BLOCK.finditer(markdown):
        line = markdown.count("\n", 0, found.start("text"))
        run, fails = True, False
        numbers: frozenset[str] | None = frozenset()
        for remark in (found["remarks"] or "").split("; "):
            what, _, more = remark.partition(": ")
            if what == "not run":
                run = False
            elif what == "it fails":
                fails = True
            elif what == "any numbers":
                numbers = frozenset(more.split(", ")) if more else None
        yield Block(line, found["kind"], found["text"], run, fails, numbers)


def write(block: Block, folder: Path) -> None:
    named = FILE.match(block.text)
    assert named, "a Python block does not begin with the name of its file"
    path = folder / named["name"]
    assert path.exists() or not named["continued"]
    with path.open("a" if named["continued"] else "w", encoding="utf-8") as file:
        file.write("\n\n" + block.text if named["continued"] else block.text)


def change(block: Block, folder: Path) -> None:
    named = CHANGED.match(block.text)
    assert named, f"line {block.line}: a change does not begin with the name of its file"
    path = folder / named["name"]
    text = path.read_text("utf-8")
    for place in re.split(r"^@@\n", block.text[named.end() :], flags=re.MULTILINE):
        lines = place.splitlines(keepends=True)
        assert all(line[0] in " -+\n" for line in lines), (
            f"line {block.line}: a line is neither new, old nor kept"
        )
        old, new = ("".join(line[1:] or "\n" for line in lines if line[0] != other) for other in "+-")
        assert text.count(old) == 1, (
            f"line {block.line}: this is not in {path.name}, or more than once:\n{old}"
        )
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


class Shell:
    """A shell as a reader has it open: variables and processes in the background outlive a block of commands.

    It ends with a command that fails, and the next block is typed into another one. What is still running when the page
    ends is killed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = tempfile.TemporaryDirectory()
        self._screen = Path(self._own.name) / "screen"
        self._shells: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for shell in self._shells:
            try:
                os.killpg(shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # all that it started has ended, and so has it
            shell.communicate()
        self._own.cleanup()

    def type_in(self, commands: str) -> tuple[int, str]:
        """What the commands print, and the exit code of the last, or of the first that fails."""
        script = Path(self._own.name) / "typed"
        script.write_text(commands, encoding="utf-8")
        self._screen.write_bytes(b"")
        shell = self._shell()
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f". '{script}' < /dev/null >> '{self._screen}' 2>&1\necho $?\n".encode())
        waiting = select.poll()  # takes descriptors above 1,023, too
        waiting.register(shell.stdout, select.POLLIN)
        assert waiting.poll(LONGEST_S * 1_000), (
            f"after {LONGEST_S} s this has not ended:\n{commands}\nIt has printed:\n{self._printed()}"
        )
        said = shell.stdout.readline()
        return int(said) if said else shell.wait(), self._printed()

    def _printed(self) -> str:
        return self._screen.read_text("utf-8")

    def _shell(self) -> subprocess.Popen[bytes]:
        if not self._shells or self._shells[-1].poll() is not None:
            self._shells.append(
                subprocess.Popen(
                    ["/bin/sh", "-eu"],
                    bufsize=0,
                    cwd=self._folder,
                    env=environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # of the shell itself: that a process in the background was killed
                    start_new_session=True,
                )
            )
        return self._shells[-1]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    return kept | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "framework"),
        "PYTHONDONTWRITEBYTECODE": "1",  # a file replaced within a second must not be taken for the old one
        "COLUMNS": "80",
    }


def as_pattern(block: Block) -> str:
    lines = [
        r"(?:.*\n)*?" if line == "..." else any_of(line, block.any_numbers) + r"\n"
        for line in plain(block.text)
    ]
    return "".join(lines)


def any_of(line: str, numbers: frozenset[str] | None) -> str:
    """A line in which some numbers stand for any."""
    parts = re.split(rf"({NUMBER})", line)
    return "".join(
        NUMBER if at % 2 and (numbers is None or part in numbers) else re.escape(part)
        for at, part in enumerate(parts)
    )


def plain(output: str) -> list[str]:
    timeless = re.sub(r"\b\d+\.\d+ ?s\b", "<time>", output.strip())
    timeless = re.sub(r"\b[\d,]+ (?:records|events)/s\b", "<rate>", timeless)
    timeless = re.sub(r"\b\d{8}T\d{9}-[0-9a-f]{8}\b", "<snapshot>", timeless)
    timeless = re.sub(r"-[0-9a-f]{8,12}\.parquet\b", "-<attempt>.parquet", timeless)
    timeless = re.sub(r"\bin /\S*/(?=(?:data|old)/)", "in .../", timeless)
    return [re.sub(r"\s+", " ", line) for line in timeless.splitlines()]


def play(markdown: str, folder: Path) -> int:
    """Do what a page says; returns how many outputs were compared."""
    compared = 0
    printed: tuple[int, str] | None = None
    with Shell(folder) as shell:
        for block in blocks(markdown):
            if block.kind == "text" and block.run:
                assert printed is not None, f"line {block.line}: nothing has been run before this output"
                found = "".join(f"{line}\n" for line in plain(printed[1]))
                assert re.fullmatch(as_pattern(block), found), (
                    f"line {block.line}: it prints\n{printed[1]}\n, not\n{block.text}"
                )
                assert (printed[0] != 0) is block.fails, f"line {block.line}: exit code {printed[0]}"
                compared += 1
            elif printed is not None:
                assert printed[0] == 0, f"before line {block.line}: a command has failed:\n{printed[1]}"
            printed = None
            if block.kind == "python":
                write(block, folder)
            elif block.kind == "diff":
                change(block, folder)
            elif block.kind == "sh" and block.run:
                printed = shell.type_in(block.text)
            else:
                assert block.kind in ("text", "sh"), f"line {block.line}: what is {block.kind!r}?"
    assert printed is None, f"nothing is shown of what the last command prints:\n{printed}"
    return compared
