"""What one partition has to read in canonical order: see ``canonical``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tailrace.core.engine.intake import Source
from tailrace.core.records import InputRecord

Whose: TypeAlias = Literal["sent", "redriven", "others"]
"""Whose a record of an own input is: the app has sent it, it was redriven for the app, or others have written it."""


def nobodys(_name: str, _record: InputRecord, /) -> Whose:
    """No record is the app's."""
    return "others"


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """What one partition has to read: of each input (by name) up to, without, an offset in ``ends``.

    ``upstream``: per source, the watermarks that its writers have published, as pairs of the position from which one holds
    and the watermark, ascending; None: they hold nobody back. An inbox that has no end in ``ends`` is not read.
    """

    source: Source
    ends: Mapping[str, int]
    upstream: Mapping[str, Sequence[tuple[int, int | None]]] = field(
        default_factory=dict[str, Sequence[tuple[int, int | None]]]
    )
    whose: Callable[[str, InputRecord], Whose] = nobodys
    """Where own inputs are delivered: what the app has sent is left out, and what was redriven stands behind all before it."""
