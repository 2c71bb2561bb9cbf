"""Numbers of things, for a person."""

from __future__ import annotations


def counted(number: int, of: str) -> str:
    """How many there are of something: ``1 record``, ``2,000 records``."""
    return f"{number:,} {of}{'' if number == 1 else 's'}"
