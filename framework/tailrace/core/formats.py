"""Versions of stored bytes. Each kind of stored thing has one format; any other is refused."""

from __future__ import annotations

from tailrace.core.errors import NewerFormatError, OldFormatError


def check_format(what: str, found: int, known: int, *, path: str | None = None, hint: str = "") -> None:
    """Refuse what another version of Tailrace has written. ``hint`` says what to do with an old format."""
    if found > known:
        raise NewerFormatError(
            f"{what} has format {found}, but this version of tailrace reads only format {known}",
            path=path,
            hint="It was written by a newer version. Run that version, or a later one.",
        )
    if found < known:
        raise OldFormatError(
            f"{what} has format {found}, which only development versions of tailrace wrote; this version "
            f"reads only format {known}",
            path=path,
            hint=hint
            or "Begin with a new log, or with another prefix, and give the events to the app again.",
        )
