"""What a misspelt name was meant to be: guessed here, for every message that says that there is no such thing."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(given: object, known: Iterable[str]) -> str | None:
    """The known name that is most like a given one, if one is; upper case and kinds of dashes make no difference."""
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(_folded(name), name)
    found = get_close_matches(_folded(str(given)), folded, n=1)
    return folded[found[0]] if found else None


def did_you_mean(given: object, known: Iterable[str], more: str = "") -> str:
    """``Did you mean 'x'?`` and then ``more``; only that if nothing that is known is near."""
    near = nearest(given, known)
    return more if near is None else f"Did you mean {near!r}? {more}".rstrip()


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
