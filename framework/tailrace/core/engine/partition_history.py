"""The records that one partition reads in canonical order: see ``canonical``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tailrace.core.engine.intake import Source
from tailrace.core.records import InputRecord

RecordOrigin: TypeAlias = Literal["sent", "redriven", "others"]
"""Origin of a record of an own input: this app sent it, it was redriven for this app, or others wrote it."""


def written_by_others(_name: str, _record: InputRecord, /) -> RecordOrigin:
    """Treat no record as this app's."""
    return "others"


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """The records that one partition reads: of each input (by name), those before an offset in ``ends``.

    ``upstream``: per source, the watermarks that its writers have published, in ascending order, as pairs of
    the position where the watermark takes effect and the watermark; None: the writers hold no reader back. An
    inbox without an end in ``ends`` is not read.
    """

    source: Source
    ends: Mapping[str, int]
    upstream: Mapping[str, Sequence[tuple[int, int | None]]] = field(
        default_factory=dict[str, Sequence[tuple[int, int | None]]]
    )
    record_origin: Callable[[str, InputRecord], RecordOrigin] = written_by_others
    """For own inputs that are delivered: records that the app sent are left out, and a redriven record is
    placed after all records before it.
    """
