"""Redriven records of what an app sends to itself, where the rebuild delivers that. See ``retrying`` for all others.

Theory. What is delivered has no place in the log, so an original is known by its content: topic, key and value. The redriven
record stands behind the records that it was appended after. By then this run has shown what becomes of the original:

    the original has failed here             the redriven record is run
    it lies before the base of the rebuild   it is run, too: nothing sends the original again
    it lies in another partition             the same: it came from a foreign one, where no code can handle it
    else                                     it is passed over. This code has handled the original, or has sent something else

One of these is shared by all tasks: a record that came from a foreign partition is redriven into another task's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from tailrace.core.engine.redriven import redriven_ids, redriven_of
from tailrace.core.records import InputRecord
from tailrace.history.rebuilding.job import Letters


def content_of(topic: str, record: InputRecord) -> bytes:
    """What a record of an own input is known by."""
    return blake2b(msgspec.msgpack.encode((topic, record.key, record.value)), digest_size=16).digest()


class OwnLetters:
    """What has become of the originals. ``bases``: by input and partition, where the base stands in what is recorded."""

    def __init__(
        self, inputs: Iterable[str], dead_letters_topic: str, bases: Mapping[tuple[str, int], int]
    ) -> None:
        self.inputs = frozenset(inputs)
        self._topic, self._bases = dead_letters_topic, bases
        self._failed: Counter[bytes] = Counter()

    def is_redriven(self, record: InputRecord) -> bool:
        """Whether a record was redriven for this app."""
        return bool(record.headers) and bool(redriven_ids(record.headers, self._topic))

    def runs(self, name: str, partition: int, record: InputRecord) -> bool:
        """Whether a redriven record is to be run; then its original counts as dealt with."""
        content = content_of(name, record)
        if self._failed[content]:
            self._failed[content] -= 1
            return True
        origins = [one.origin for one in redriven_of(record.headers) if one.topic == self._topic]
        return any(
            one is not None and (one[0] != partition or one[1] < self._bases.get((name, one[0]), 0))
            for one in origins
        )

    def failed(self, name: str, record: InputRecord) -> None:
        """A record of an own input has failed in this run, or was refused."""
        self._failed[content_of(name, record)] += 1

    def settled(self, letters: Letters, partition: int) -> set[tuple[str, int]]:
        """The originals in a partition that this run has dealt with: their letters need nothing more."""
        return {
            (topic, offset)
            for topic, offset, content in letters.contents
            if offset >= self._bases.get((topic, partition), 0) and not self._failed[content]
        }
