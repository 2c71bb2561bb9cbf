"""The line that says how far a command has come: on a terminal only, now and then, and gone at the end."""

from __future__ import annotations

import io
import sys
import time

import pytest

from tailrace.cli.progress_line import ProgressLine
from tailrace.processes.logs import CLEAR_LINE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now_s(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_it_is_written_over_now_and_then_and_taken_away(monkeypatch, now_s) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressLine() as line:
        for _ in range(10):
            now_s[0] += 0.125
            line.report(lambda seconds: f"{seconds:.2f} s")
    written = terminal.getvalue().split(CLEAR_LINE)
    assert written == ["", "0.25 s", "0.50 s", "0.75 s", "1.00 s", "1.25 s", ""]


@pytest.mark.parametrize(("stream", "shown"), [(io.StringIO, True), (Terminal, False)])
def test_where_nobody_looks_nothing_is_said_or_even_asked_for(monkeypatch, now_s, stream, shown) -> None:
    said = stream()
    monkeypatch.setattr(sys, "stderr", said)
    with ProgressLine(shown=shown) as line:
        now_s[0] += 10
        line.report(lambda _: pytest.fail("asked"))
    assert said.getvalue() == ""
