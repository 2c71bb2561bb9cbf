"""Misspelt keyword options: an error that lists the known options, in place of Python's own TypeError."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypedDict

from tailrace.core.errors import DefinitionError
from tailrace.core.suggestions import did_you_mean


class NoOptions(TypedDict):
    """No further keyword options: a type checker refuses any, and so does ``refuse_unknown`` at run time."""


def refuse_unknown(
    where: str, unknown: Mapping[str, object], known: Collection[str] = (), hint: str = ""
) -> None:
    """Refuse unknown options.

    Raises:
        DefinitionError: There is an unknown option. The hint lists the known ones.
    """
    for name in unknown:
        more = hint or (f"The options are: {', '.join(known)}." if known else "")
        raise DefinitionError(f"{where} has no option {name!r}", hint=did_you_mean(name, known, more))
