"""Compares the records that an app sends to itself along the tape with the recorded ones.

Theory. A rebuild along the tape reads the app's messages and its own topics as they were recorded. They are
effects of the earlier code. The present code would send the same if and only if each task, given the recorded
records, sends the same again: to every partition of every own input, the same records in the same order. So
each task reads, next to what it sends, the records that it has sent there before, and stops at the first that differs.
A record that is no longer sent is noticed at the end of the commit that has sent it. No digest of the code is
needed, and a change that does not alter the sends is accepted.

A rebuild of a part (some keys, or up to a limit) gets records that other keys have sent, or other tasks from behind
their limits. So before such a rebuild, units of their own (``sends``) run the whole history, and only compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn, TypeAlias

import msgspec
from msgspec.structs import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.stages import own_inputs
from tailrace.core.errors import SendsDifferError
from tailrace.core.records import InputRecord, Output
from tailrace.core.rows import decode_envelope
from tailrace.core.unit_ids import ORIGIN_HEADER
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.app_history import origin_of
from tailrace.history.reading.stretches import batches
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.past import HistorySource

_Recorded: TypeAlias = tuple[int, InputRecord]
"""The running number of an output of the task, and its record."""
_AT_ONCE = 1_000
"""Records read at once from each destination."""


class Sends:
    """Compares what the task of one partition sends to its app with what the same task has sent before."""

    def __init__(self, job: Job, past: HistorySource, number: int) -> None:
        plan, self._sender = past.plan, number
        self._topics = {name: one.is_inbox for name, one in own_inputs(plan).items()}
        self._partitions = plan.partitions
        self._recorded = {
            (topic, partition): _recorded(job, past, number, topic, partition)
            for topic in sorted(self._topics)
            if topic in job.ends
            for partition in range(plan.partitions)
        }
        self._next = {place: next(found, None) for place, found in self._recorded.items()}
        """By destination: the recorded record that the task has to send next."""

    def take(self, outputs: Iterable[Output], until: int | None = None) -> None:
        """Compare outputs. Recorded ones with numbers below ``until`` must not be left then.
        Raises SendsDifferError: the app is sent another record than is recorded.
        """
        topics, waiting = self._topics, self._next
        for one in outputs:
            if one.topic not in topics:
                continue
            place = one.topic, partition_of(one.key or b"", self._partitions)
            found = waiting.get(place)
            if found is None or _content(found[1]) != _content(one):
                self._differs(place, found, one)
            waiting[place] = next(self._recorded[place], None)
        if until is not None:
            for place, found in waiting.items():
                if found is not None and found[0] < until:
                    self._differs(place, found, None)

    def end(self) -> None:
        """Compare the end: no recorded record may be left. Raises what ``take`` raises."""
        self.take((), 1 << 62)

    def _differs(self, place: tuple[str, int], then: _Recorded | None, now: Output | None) -> NoReturn:
        topic, partition = place
        offset = "" if then is None else f" at offset {then[1].offset}"
        before = "nothing more" if then is None else _shown(then[1], message=self._topics[topic])
        here = "nothing more" if now is None else _shown(now, message=self._topics[topic])
        raise SendsDifferError(
            f"what partition {self._sender} sends to {topic!r} partition {partition} is not what is recorded{offset}, and "
            f"along the tape the recorded messages and own topics are read. It sent {before}, and now sends {here}",
            hint="Rebuild with --order canonical, where they come from this code.",
        )


def compares_sends(job: Job, plan: Plan) -> bool:
    """Whether the units of a rebuild compare the app's sends to itself. Those of a part do not see all of them."""
    return job.order == "tape" and not job.request.partial and bool(own_inputs(plan))


def compares_before(job: Job, plan: Plan) -> bool:
    """Whether the sends are compared over the whole history, before only a part of it is rebuilt."""
    part = job.request.partial and not job.request.source.after_deleted
    return job.order == "tape" and part and bool(own_inputs(plan))


def whole(job: Job) -> Job:
    """The same job for all keys, without limits and outputs."""
    request = replace(job.request, keys=(), until=Limits(), to=replace(job.request.to, outputs="none"))
    return replace(job, request=request)


def _recorded(job: Job, past: HistorySource, number: int, topic: str, partition: int) -> Iterator[_Recorded]:
    """The records that a task has sent to one partition, with their running numbers, from its beginning to its target."""
    cut, begin = job.targets[number].cut, past.beginning(job, number).outputs
    stop = 0 if cut is None else tape.decode_cut(cut).totals.outputs
    app = past.plan.app.encode()
    for some in batches(past.log, topic, partition, stop=job.ends[topic][partition], at_once=_AT_ONCE):
        for record in some:
            sender, running = origin_of(record, app) or (-1, 0)
            if sender == number and begin <= running < stop:
                yield running, record


def _content(one: InputRecord | Output) -> tuple[object, ...]:
    headers = one.headers
    if headers and headers[-1][0] == ORIGIN_HEADER:
        headers = headers[:-1]
    return one.key, one.value, one.timestamp_ms, tuple(headers)


def _shown(one: InputRecord | Output, *, message: bool) -> str:
    """A record as text for an error."""
    value = repr(one.value)
    if message and one.value is not None:
        actor, name, encoded = decode_envelope(one.value)
        value = f"{actor} {name} {msgspec.msgpack.decode(encoded)}"
    return f"key {one.key!r}, time {one.timestamp_ms} ms, value {value:.300}"
