"""Misspelt options of functions that take them as a TypedDict: Python itself does not refuse them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tailrace.core.errors import DefinitionError
from tailrace.core.suggestions import did_you_mean


def refuse_unknown(where: str, unknown: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse unknown options.

    Raises:
        DefinitionError: There is an unknown option. The hint lists the known ones.
    """
    for name in unknown:
        more = f"The options are: {', '.join(known)}."
        raise DefinitionError(f"{where} has no option {name!r}", hint=did_you_mean(name, known, more))
