"""Logs of a running service: short lines for people at a terminal, otherwise one JSON object per line.

The library logs through the standard ``logging``. Handlers of events can do the same. Structured fields go into ``extra``:
``log.info("a partition runs", extra={"partition": 3})``. Both formats show them.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

LogFormat = Literal["auto", "json", "text"]

_OWN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that were given as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def printable(text: str) -> str:
    """Text with escaped control characters and ends of lines, so that a terminal does not execute them, and no line is forged."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class JsonFormatter(logging.Formatter):
    """One JSON object: ``at`` (ISO 8601, UTC), ``level``, ``message``, ``logger``, ``process``, the fields, ``traceback``."""

    def __init__(self) -> None:
        super().__init__()
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            "process": record.process,
        }
        for name, value in fields_of(record).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        try:
            return self._encoder.encode(line).decode()
        except (TypeError, ValueError):
            # JSON cannot represent a nested field. A log line must never cause a failure.
            plain = {name: str(value).encode(errors="replace").decode() for name, value in line.items()}
            return self._encoder.encode(plain).decode()


class TextFormatter(logging.Formatter):
    """``12:00:00 message  field=value ...``, with the level if it is above INFO, and an indented ``traceback`` below."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        fields = fields_of(record)
        trace = fields.pop("traceback", None)  # of an exception that is known only as text
        shown = "".join(f"  {name}={value}" for name, value in fields.items())
        lines = [f"{at} {level}{record.getMessage()}{shown}"]
        for text in (trace, record.exc_info and self.formatException(record.exc_info)):
            lines += [f"  {line}" for line in str(text or "").rstrip().split("\n") if line]
        return "\n".join(map(printable, lines))


def configure(format: LogFormat = "auto") -> logging.Handler:
    """Send the logs of this process to standard error. Removes the existing root handlers.

    ``auto`` is text for a terminal, JSON otherwise. Returns the new handler.
    """
    text = format == "text" or (format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    root = logging.getLogger()
    for before in list(root.handlers):
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    return handler
