"""Versions of stored bytes. Each kind of stored thing has one format; any other is refused."""

from __future__ import annotations

from typing import Final

from tailrace.core.errors import FormatError

FOLDER_MODE: Final = 0o750
"""Of a folder that holds events, keys or states: for the user and its group."""


def check_format(what: str, found: int, known: int, *, path: str | None = None, hint: str = "") -> None:
    """Refuse what another version of Tailrace has written. ``hint`` says what else can be done."""
    if found != known:
        raise FormatError(
            f"{what} has format {found}, and this version of tailrace reads only format {known}",
            path=path,
            hint=f"Run the version that wrote it. {hint or 'Or begin with a new log, or with another prefix, and give the events to the app again.'}",
        )
