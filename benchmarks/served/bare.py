"""The baseline of a worker: a hand-written loop over the same log. It is exactly once only while there are no failures.

It reads, decodes, counts in a dict, encodes and writes, in transactions with its offsets. Its state is lost when it ends:
there is no changelog, store or tape. It does not undo failures, and has no late events and no watermarks.
"""

from __future__ import annotations

from time import monotonic

import msgspec

from benchmarks.apps import Event, Total
from benchmarks.loops import State
from benchmarks.served.house import AT_ONCE
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog

OUT = "bare-totals"
_EVENTS = TopicPartition("events", 0)


class BareLoop:
    """The loop. It keeps its counts and its position from one ``run`` to the next."""

    def __init__(self, log: EmbeddedLog, commit_ms: int) -> None:
        log.create_topic(OUT, TopicSettings(1))
        self._reader = log.reader({_EVENTS: 0})
        self._writer = log.writer("bare")
        self._commit_s = commit_ms / 1_000
        self._states: dict[str, State] = {}

    def run(self) -> int:
        """Handle all available events. Returns their number."""
        decode, encode = msgspec.json.Decoder(Event).decode, msgspec.json.Encoder().encode
        states, writer, taken, offset = self._states, self._writer, 0, 0
        committed = monotonic()
        while records := self._reader.fetch(*_EVENTS, AT_ONCE).records:
            outputs: list[Output] = []
            for record in records:
                event = decode(record.value or b"")
                state = states.get(event.key)
                if state is None:
                    state = states[event.key] = State()
                state.count += 1
                state.total += event.value
                total = Total(event.key, state.count, state.total)
                outputs.append(Output(OUT, total.key.encode(), encode(total), event.at))
            writer.append(outputs)
            taken, offset = taken + len(records), records[-1].offset + 1
            if monotonic() - committed >= self._commit_s:
                writer.commit({_EVENTS: offset}, "bare")
                committed = monotonic()
        writer.commit({_EVENTS: offset}, "bare")
        return taken
