"""Suggests a known name for a misspelt one, for all messages about unknown names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from tailrace.core.errors import DefinitionError


def nearest(unknown: object, known: Iterable[str]) -> str | None:
    """The known name that is most similar to a given one, if any. Case and kinds of dashes do not matter."""
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(_folded(name), name)
    found = get_close_matches(_folded(str(unknown)), folded, n=1)
    return folded[found[0]] if found else None


def did_you_mean(unknown: object, known: Iterable[str], more: str = "") -> str:
    """``Did you mean 'x'?`` and then ``more``. Only ``more`` if no known name is similar."""
    near = nearest(unknown, known)
    return more if near is None else f"Did you mean {near!r}? {more}".rstrip()


def refuse_unknown(where: str, options: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse misspelt options of a function that takes them as a TypedDict. Raises DefinitionError."""
    for name in options:
        if name not in known:
            more = f"The options are: {', '.join(known)}."
            raise DefinitionError(f"{where} has no option {name!r}", hint=did_you_mean(name, known, more))


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
