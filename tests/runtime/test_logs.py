"""What the lines of a log look like."""

from __future__ import annotations

import io
import logging

import msgspec
import pytest

from tailrace.processes import logs


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def configured(monkeypatch):
    """``logs.configure`` as a process would call it, undone at the end."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level

    def configure(*given, stream):
        monkeypatch.setattr("sys.stderr", stream)
        logs.configure(*given)

    yield configure
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in before:
        root.addHandler(handler)
    root.setLevel(level)


def test_a_line_for_a_machine_is_one_json_object_with_the_fields(configured) -> None:
    stream = io.StringIO()
    configured(stream=stream)
    logging.getLogger("tailrace.x").info("a %s runs", "partition", extra={"partition": 3, "key": b"\xff"})
    (line,) = stream.getvalue().splitlines()
    found = msgspec.json.decode(line)
    assert found["message"] == "a partition runs"
    assert (found["level"], found["logger"], found["partition"]) == ("info", "tailrace.x", 3)
    assert found["at"].endswith("+00:00")


def test_a_trace_stays_in_its_line(configured) -> None:
    stream = io.StringIO()
    configured(stream=stream)
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        logging.getLogger("tailrace.x").exception("it failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: bad\nnews" in msgspec.json.decode(line)["traceback"]


def test_a_field_that_json_cannot_say_is_said_as_text(configured) -> None:
    stream = io.StringIO()
    configured(stream=stream)
    logging.getLogger("tailrace.x").info("odd", extra={"what": object(), "file": "\udcff"})
    found = msgspec.json.decode(stream.getvalue())
    assert "object" in found["what"]
    assert (found["message"], found["file"]) == ("odd", "?")


def test_a_field_cannot_take_the_place_of_what_every_line_has(configured) -> None:
    stream = io.StringIO()
    configured(stream=stream)
    logging.getLogger("tailrace.x").info("true", extra={"level": "false", "at": "never"})
    assert msgspec.json.decode(stream.getvalue())["level"] == "info"


def test_at_a_terminal_a_line_is_for_a_person(configured) -> None:
    stream = Screen()
    configured(stream=stream)
    logging.getLogger("tailrace.x").warning("it waits", extra={"partition": 3})
    assert stream.getvalue().endswith(" WARNING it waits  partition=3\n")


def test_a_trace_that_is_known_by_its_words_is_a_field_for_a_machine_and_below_the_line_for_a_person(
    configured,
) -> None:
    words = {"partition": 3, "traceback": "Traceback:\n  a line\nValueError: no\n"}
    stream = io.StringIO()
    configured("text", stream=stream)
    logging.getLogger("tailrace.x").warning("it failed", extra=words)
    line, *below = stream.getvalue().splitlines()
    assert line.endswith("WARNING it failed  partition=3")
    assert below == ["  Traceback:", "    a line", "  ValueError: no"]
    stream = io.StringIO()
    configured(stream=stream)
    logging.getLogger("tailrace.x").warning("it failed", extra=words)
    assert msgspec.json.decode(stream.getvalue())["traceback"] == words["traceback"]


def test_text_of_others_neither_forges_a_line_nor_reaches_the_terminal_raw(configured) -> None:
    stream = Screen()
    configured(stream=stream)
    text = "x\n12:00:00 ERROR forged\x1b[31m\u009b2J"
    try:
        raise ValueError(text)
    except ValueError:
        logging.getLogger("tailrace.x").exception("failed: %s", text, extra={"key": text})
    first, *rest = stream.getvalue().splitlines()
    assert first.count(r"x\n12:00:00 ERROR forged\x1b[31m\x9b2J") == 2
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert rest[-1] == r"  12:00:00 ERROR forged\x1b[31m\x9b2J"
