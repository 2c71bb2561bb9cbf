"""Redriven records of an app's own inputs, if the rebuild itself delivers the records to them. For others see ``retrying``.

Theory. A delivered record has no position in the log, so an original is identified by its content: topic, key and value. The
redriven record comes after the records that it was appended after. By then this run knows the outcome of the original:

    the original has failed here             the redriven record is run
    it is before the base of the rebuild     it is run, too: no task sends the original again
    it is in another partition               the same: it came from a foreign one, where no code can handle it
    else                                     it is skipped: this code has handled the original, or has sent another record

All tasks share one ``OwnLetters``: a record from a foreign partition is redriven into the partition of another task.
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
    """The identity of a record of an own input: a digest of topic, key and value."""
    return blake2b(msgspec.msgpack.encode((topic, record.key, record.value)), digest_size=16).digest()


class OwnLetters:
    """The outcomes of the originals. ``bases``: by input and partition, the base's position in the recorded topic."""

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
        """Whether a redriven record must be run. If so, its original no longer counts as failed."""
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
        """The originals in a partition that this run has handled: their letters are settled."""
        return {
            (topic, offset)
            for topic, offset, content in letters.contents
            if offset >= self._bases.get((topic, partition), 0) and not self._failed[content]
        }
