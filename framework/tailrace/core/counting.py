"""Numbers of things, for messages."""

from __future__ import annotations


def counted(number: int, of: str) -> str:
    """A number with its noun: ``1 record``, ``2,000 records``."""
    return f"{number:,} {of}{'' if number == 1 else 's'}"
