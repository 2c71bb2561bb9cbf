"""Compares the outputs of a first run with those of its replay.

Outputs are numbered by the task that emits them. Those in the log are hashed into an array by number, for all
topics together, and fetched again only if the hashes differ. The first commit that differs ends the comparison. Its outputs are
compared by key, because one additional output changes the numbers of all later ones.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.describe_rows import Change, changes, instant
from tailrace.core.errors import TailraceError
from tailrace.core.records import Output
from tailrace.core.unit_ids import ORIGIN_HEADER
from tailrace.history.comparing.differences import Difference, Differences, first_apart
from tailrace.history.reading.app_history import Emitted, hash_of

Numbered: TypeAlias = tuple[int, Output]
"""An output with the running number that its task gave it."""


class OutputComparison:
    """Compares the outputs of a replay with those in the log, commit by commit, up to the first that differs.

    ``report`` reports its first difference of each topic and key.
    """

    def __init__(
        self, plan: Plan, partition: int, emitted: Emitted, stop: int, in_part: Collection[str] = ()
    ) -> None:
        """``stop``: outputs from this number on are not compared. ``in_part``: topics that may have lost records."""
        self._stop = stop
        self._plan = plan
        self._partition = partition
        self._hashes: array[int] = emitted.hashes
        self._twice = emitted.twice
        self._in_part = in_part
        self._differing: tuple[range, list[Output]] | None = None
        """The numbers of a commit's outputs in the first run, and its outputs now."""
        self.gone = 0
        """Outputs that the log may have deleted since."""

    def take(self, first: int, stop: int, outputs: Sequence[Output]) -> None:
        """Compare a commit's outputs. Those of the first run have numbers from ``first`` to ``stop`` - 1."""
        if first >= self._stop or self._differing is not None:
            return
        hashes, count = self._hashes, len(outputs)
        known = hashes[first:stop]
        missing = stop - first - len(known) + known.count(0)
        if self._in_part and missing and count == stop - first:
            pairs = zip([*known, *[0] * (count - len(known))], outputs, strict=True)
            alike = all(was == hash_of(one) or (not was and one.topic in self._in_part) for was, one in pairs)
            self.gone += missing if alike else 0
        else:
            alike = count == stop - first and list(map(hash_of, outputs)) == known.tolist()
        if not alike:
            self._differing = range(first, stop), list(outputs)

    def wanted(self) -> range:
        """The numbers of the outputs that ``report`` needs."""
        return range(0) if self._differing is None else self._differing[0]

    def report(self, live: Mapping[int, Output], into: Differences) -> None:
        """Report the differences. ``live``: the outputs of ``wanted`` from the log."""
        for number, topic in sorted(self._twice.items()):
            place = f"app {self._plan.app!r} partition {self._partition}"
            where = f"output {number} of {place} is in the log twice"
            into.add(Difference(kind="output", partition=self._partition, where=where, topic=topic))
        if self._differing is None:
            return
        numbers, outputs = self._differing
        was = [(number, live[number]) for number in numbers if number in live]
        now = [*enumerate(outputs, numbers.start)]
        found = self._by_key(was, now)
        if not found and (pair := first_apart(was, now)) is not None:
            # Every key has the same outputs, in another order or with other numbers.
            found = [output_difference(self._plan, self._partition, *pair)]
        for one in found:
            into.add(one)

    def _by_key(self, was: list[Numbered], now: list[Numbered]) -> list[Difference]:
        """The first difference of each key."""
        grouped: dict[tuple[str, bytes | None], tuple[list[Numbered], ...]]
        grouped = defaultdict(lambda: ([], []))
        for side, outputs in enumerate((was, now)):
            for number, one in outputs:
                grouped[one.topic, one.key][side].append((number, one))
        found: list[tuple[int, Difference]] = []
        for before, after in grouped.values():
            pair = first_apart(before, after, _bare)
            if pair is None:
                continue
            either = pair[0] or pair[1]
            assert either is not None
            found.append((either[0], output_difference(self._plan, self._partition, *pair)))
        return [one for _, one in sorted(found, key=lambda numbered: numbered[0])]


def output_difference(plan: Plan, partition: int, was: Numbered | None, now: Numbered | None) -> Difference:
    """Describe two outputs that differ, field by field. None: a side does not have the output."""
    either = was or now
    assert either is not None
    number, output = either
    shown = [{} if one is None else output_picture(plan, one[1]) for one in (was, now)]
    key = shown[0 if was else 1]["key"]
    return Difference(
        kind="output",
        where=f"output {number} of app {plan.app!r} partition {partition} differs, to {output.topic!r} with "
        f"key {key}",
        partition=partition,
        topic=output.topic,
        key=key,
        key_bytes=output.key,
        changes=tuple(changes(*shown)) or _changed_bytes(was, now),
    )


def _changed_bytes(was: Numbered | None, now: Numbered | None) -> tuple[Change, ...]:
    """Differences of outputs with equal decoded fields: in number, or in bytes of key, value or headers."""
    sides = [{} if one is None else {"number": str(one[0]), **_raw(one[1])} for one in (was, now)]
    return tuple(changes(*sides))


def _raw(output: Output) -> dict[str, str]:
    return {name: repr(value) for name, value in output._asdict().items()}


def _bare(numbered: Numbered) -> tuple[Any, ...]:
    """An output without its number, since numbers do not match after an additional or missing output."""
    output = numbered[1]
    return (*output[:4], output.headers[:-1])


def output_picture(plan: Plan, output: Output) -> dict[str, str]:
    """An output as text: its event field by field, if it can be decoded."""
    shown = {"key": _output_key(plan, output), "timestamp": instant(output.timestamp_ms)}
    event: object = output_event(plan, output)
    fields: tuple[str, ...] = getattr(event, "__struct_fields__", ())
    if fields:
        shown |= {name: repr(getattr(event, name)) for name in fields}
    else:
        shown["value"] = repr(event)
    headers = (
        (name, value.partition(b"\0")[0] if name == ORIGIN_HEADER else value)
        for name, value in output.headers
    )
    return shown | {f"header {name}": value.decode(errors="replace") for name, value in headers}


def output_event(plan: Plan, output: Output) -> Any:
    """The event of an output; its bytes if they cannot be decoded."""
    topic = plan.topics.get(output.topic)
    try:
        if output.topic == plan.inbox_topic and output.value is not None:
            actor_name, name, encoded = rows.decode_envelope(output.value)
            return next(one for one in plan.actors if one.name == actor_name).messages[name].decode(encoded)
        if topic is not None and output.value is not None:
            return topic.decode(output.value)
    except (msgspec.MsgspecError, ValueError, TailraceError, KeyError, StopIteration):
        pass
    return output.value


def _output_key(plan: Plan, output: Output) -> str:
    topic = plan.topics.get(output.topic)
    codec: Callable[[bytes], Any] | None = None
    if topic is not None and topic.key_of is not None:
        codec = topic.key_codec.decode
    elif output.topic == plan.inbox_topic and plan.actors:
        codec = bytes.decode
    try:
        return repr(output.key if codec is None or output.key is None else codec(output.key))
    except (TailraceError, ValueError):
        return repr(output.key)
