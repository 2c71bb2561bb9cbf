"""Keyword options that are misspelt: a sentence that says what there is, in place of Python's own TypeError."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypedDict

from tailrace.core.errors import DefinitionError
from tailrace.core.suggestions import did_you_mean


class NoOptions(TypedDict):
    """Further keyword options, of which there are none: a type checker refuses each, and ``refuse_unknown`` at run time."""


def refuse_unknown(
    where: str, unknown: Mapping[str, object], known: Collection[str] = (), hint: str = ""
) -> None:
    """Refuse options that were not asked for.

    Raises:
        DefinitionError: There is one.
    """
    for name in unknown:
        more = hint or (f"There {'are' if len(known) > 1 else 'is'} {', '.join(known)}." if known else "")
        raise DefinitionError(f"{where} has no option {name!r}", hint=did_you_mean(name, known, more))
