"""Counts the offsets that hold no record in the compacted inputs of a rebuild in canonical order.

A compacted topic keeps the last record of each key, and its readers are meant to do with that. A rebuild
without a tape reads what a new service would read now. The state can differ from that of a service that has
read the other records, so the report names the inputs and the number of offsets. In a log whose transactions
leave markers, these are counted too: they look the same.

Along the tape, a missing record is an error: see ``core.engine.replay``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.replay import Source
from tailrace.core.records import InputRecord
from tailrace.log.interface import Log


class CompactedInputs:
    """The compacted inputs of an app, and what was read of them. Each stretch must be read once."""

    def __init__(self, plan: Plan, log: Log) -> None:
        known = log.topics()
        self._names = {one.name for one in plan.inputs if one.name in known and known[one.name].compacted}
        self.gaps: dict[str, int] = {}
        """By input: the number of offsets without a record. An input without gaps is not in it."""

    def counting(self, source: Source) -> Source:
        """The source, with its gaps counted."""
        if not self._names:
            return source

        def counted(name: str, start: int, stop: int) -> Sequence[InputRecord]:
            found = source(name, start, stop)
            if name in self._names and (gaps := stop - start - len(found)):
                self.gaps[name] = self.gaps.get(name, 0) + gaps
            return found

        return counted
