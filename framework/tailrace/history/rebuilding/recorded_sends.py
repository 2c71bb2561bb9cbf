"""Compares the records that an app sends to itself along the tape with the recorded ones.

Theory. A rebuild along the tape reads the app's messages and its own topics as they were recorded. They are
effects of the earlier code. The present code would send the same if and only if each task, given the recorded
records, sends the same again: to every partition of every own input, the same records in the same order. So
each task keeps, for each destination, a chained digest of the records that it sends there. Each partition of
an own input has the digests of its recorded records, by sender. The driver compares the two. No digest of the
code is needed, and a change that does not alter the sends is accepted.

A rebuild of a part (some keys, or up to a limit) gets records that other keys have sent, or other tasks from behind
their limits. So before such a rebuild, units of their own (``sends``) run the whole history, and only compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.task import ORIGIN_HEADER
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.app_history import origin_of
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.results import SendDigests, TaskResult


class Chains:
    """Digests of records by destination, ``topic/partition``."""

    def __init__(self) -> None:
        self.digests: dict[str, bytes] = {}

    def add(self, topic: str, partition: int, record: Output | InputRecord) -> None:
        """Add a record to the digest of its destination."""
        headers = [one for one in record.headers if one[0] != ORIGIN_HEADER]
        place = f"{topic}/{partition}"
        content = msgspec.msgpack.encode((record.key, record.value, record.timestamp_ms, headers))
        self.digests[place] = blake2b(self.digests.get(place, b"") + content, digest_size=16).digest()


class Sends:
    """The records that one task sends to its app."""

    def __init__(self, plan: Plan) -> None:
        self.topics = frozenset(own_inputs(plan))
        self.chains = Chains()
        self._partitions = plan.partitions

    def take(self, outputs: Iterable[Output]) -> None:
        """Add the outputs that the app itself reads."""
        for one in outputs:
            if one.topic in self.topics:
                self.chains.add(one.topic, partition_of(one.key or b"", self._partitions), one)

    def digests(self, job: Job, past: HistorySource, number: int) -> SendDigests:
        """The digests of the task's sends, and of the records in its partition of the app's own inputs."""
        return SendDigests(self.chains.digests, _recorded(job, past, number))


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


def task_without_history(job: Job, past: HistorySource, number: int) -> TaskResult:
    """The result of a task that has never committed."""
    sends = Sends(past.plan).digests(job, past, number) if compares_sends(job, past.plan) else None
    return TaskResult(partition=number, sends=sends)


def first_difference(tasks: Sequence[TaskResult]) -> str | None:
    """The first destination with sends other than recorded, as text; None if no compared one differs."""
    compared = {one.partition: one.sends for one in tasks if one.sends is not None}
    for sender, sends in compared.items():
        recorded: dict[str, bytes] = {}
        for one in compared.values():
            recorded |= one.recorded.get(sender, {})
        for place in sorted(sends.sent.keys() | recorded.keys()):
            if sends.sent.get(place) != recorded.get(place):
                topic, _, partition = place.rpartition("/")
                return f"what partition {sender} sends to {topic!r} partition {partition}"
    return None


def _recorded(job: Job, past: HistorySource, number: int) -> dict[int, dict[str, bytes]]:
    """The digests of each task's recorded sends in one partition of the app's own inputs."""
    plan = past.plan
    begins = [past.beginning(job, sender).outputs for sender in range(plan.partitions)]
    stops = [0 if one.cut is None else tape.decode_cut(one.cut).totals.outputs for one in job.targets]
    found: dict[int, Chains] = {}
    app = plan.app.encode()
    for topic in sorted(own_inputs(plan)):
        if topic not in job.ends:
            continue
        for record in scan(past.log, topic, number, stop=job.ends[topic][number]):
            origin = origin_of(record, app)
            if origin is not None and begins[origin[0]] <= origin[1] < stops[origin[0]]:
                found.setdefault(origin[0], Chains()).add(topic, number, record)
    return {sender: chains.digests for sender, chains in found.items()}
