"""Numbers of things, for messages."""

from __future__ import annotations

from collections.abc import Sequence

_SIX_DIGITS, _MOST_DIGITS = 1e5, 1e15


def counted(number: int, of: str) -> str:
    """A number with its noun: ``1 record``, ``2,000 records``."""
    return f"{number:,} {of}{'' if number == 1 else 's'}"


def number(value: float) -> str:
    """A number of any size: ``1,410,000``, ``0.025``."""
    whole = abs(value) >= _SIX_DIGITS or value == value // 1
    return f"{value:,.0f}" if whole and abs(value) < _MOST_DIGITS else f"{value:,.6g}"


def listed(names: Sequence[str], most: int) -> str:
    """The names, or the first ``most`` of them: ``a, b, ...``."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def offsets(first: int, stop: int) -> str:
    """The offsets from ``first`` to ``stop - 1``: ``offset 7``, ``offsets 7 to 1,000``."""
    return f"offset {first:,}" if stop <= first + 1 else f"offsets {first:,} to {stop - 1:,}"
