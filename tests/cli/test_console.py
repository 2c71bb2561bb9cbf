"""What commands draw: styles and a progress bar on a terminal only, plain text everywhere else."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest

from tailrace.cli.arguments import piped, tell
from tailrace.cli.console import progress, say, styled_table, table

ROWS = [("flights", 4, "7 d"), ("a-longer-topic", 1_234, "for ever")]
HEADER = ("topic", "partitions", "kept")
PLAIN = [
    "topic           partitions  kept",
    "flights                  4  7 d",
    "a-longer-topic       1,234  for ever",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colours(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def shown(monkeypatch, stream: io.StringIO, what, *given, **options) -> str:
    with monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", stream)
        changed.setattr(sys, "stderr", stream)
        what(*given, **options)
    return stream.getvalue()


def test_a_line_has_its_styles_on_a_terminal_and_is_plain_elsewhere(monkeypatch) -> None:
    parts = "  ", ("late", "red"), " [red]:smile:[/red] 17"
    assert shown(monkeypatch, io.StringIO(), say, *parts) == "  late [red]:smile:[/red] 17\n"
    assert shown(monkeypatch, Terminal(), say, *parts) == "  \x1b[31mlate\x1b[0m [red]:smile:[/red] 17\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(monkeypatch, Terminal(), say, *parts, ("x", "bold")) == "  late [red]:smile:[/red] 17x\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_long_line_is_neither_wrapped_nor_cut(monkeypatch, stream) -> None:
    line = "word " * 100 + "end"
    assert shown(monkeypatch, stream(), say, line) == f"{line}\n"
    monkeypatch.setenv("COLUMNS", "20")
    wide = table([(line, 1)], ("text", "number"))
    assert wide[1] == f"{line}       1"


def test_a_table_is_as_wide_as_its_cells_with_numbers_to_the_right(monkeypatch) -> None:
    assert table(ROWS, HEADER) == PLAIN
    styled = styled_table(ROWS, HEADER)
    assert shown(monkeypatch, io.StringIO(), tell, {}, styled, as_json=False).splitlines() == PLAIN
    first, *lines = shown(monkeypatch, Terminal(), tell, {}, styled, as_json=False).splitlines()
    assert first == f"\x1b[1m{PLAIN[0]}\x1b[0m"
    assert lines == PLAIN[1:]
    assert table([], HEADER) == ["topic  partitions  kept"]
    assert table([("日本", "x"), ("ab", "y")], ("t", "u")) == ["t     u", "日本  x", "ab    y"]


def test_a_bar_is_drawn_on_a_terminal_and_is_gone_at_the_end(monkeypatch) -> None:
    terminal = Terminal()

    def work() -> None:
        with progress() as report:
            report("replaying [x]", 5, 10)
            report("replaying [x]: half", 5, 10)

    said = shown(monkeypatch, terminal, work)
    assert "replaying [x]: half" in said
    assert "50%" in said
    left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.rpartition("\x1b[2K")[2])
    assert left.strip() == "", "the line is cleared"
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l"), "the cursor is shown again"


@pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO, True), (Terminal, False)])
def test_where_nobody_looks_no_bar_is_drawn(monkeypatch, stream, wanted) -> None:
    def work() -> None:
        with progress(shown=wanted) as report:
            report("replaying", 5, 10)

    assert shown(monkeypatch, stream(), work) == ""


def test_a_reader_that_leaves_is_no_error(monkeypatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as pipe, monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", pipe)
        with piped():
            say("nobody reads this")
            pytest.fail("said")
