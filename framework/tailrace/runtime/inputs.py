"""The inputs of an app in a worker: whether they are those of its history, and how far they have been read."""

from __future__ import annotations

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import InputsChangedError
from tailrace.core.storage import Store
from tailrace.log.interface import Fetch, Publication, Reader, TopicPartition
from tailrace.state.store_cut import decode_store_cut


def check_inputs(plan: Plan, number: int, store: Store) -> None:
    """Refuse an app that reads other topics than its history: it could not be replayed. ``store`` is that of a restored task.
    Raises InputsChangedError: it reads a topic that it did not read when the task last committed, or no
    longer reads one.
    """
    data = store.cut
    core = None if data is None else decode_store_cut(data).core
    if core is None:
        return
    before, now = set(tape.decode_cut(core).positions), {one.name for one in plan.inputs}
    if before == now:
        return
    said = [
        f"{verb} {', '.join(map(repr, sorted(names)))}"
        for verb, names in (("no longer reads", before - now), ("now reads", now - before))
        if names
    ]
    raise InputsChangedError(
        f"the app {plan.app!r} {' and '.join(said)}, unlike when partition {number} last committed",
        hint="Declare the former inputs again, or give the app another name. If the change is intended, run it once with "
        "--change-inputs: a new input is read from its beginning, and a replay needs the code of each period.",
    )


def follows_itself(plan: Plan) -> bool:
    """Whether tasks of the app go by the watermarks of other tasks of the app."""
    return len(plan.sources) > len(plan.inputs) or any(
        one.own and one.watermark == "upstream" for one in plan.inputs
    )


class WatchedReader:
    """A reader that remembers the results of its last fetch of each partition."""

    __slots__ = ("_reader", "idle", "past_gaps")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.idle: dict[TopicPartition, bool] = {}
        """Whether there was no record after the position."""
        self.past_gaps: dict[TopicPartition, int] = {}
        """The position after a fetch that returned no records: past offsets without a record."""

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        found = self._reader.fetch(topic, partition, max_records)
        place = TopicPartition(topic, partition)
        self.idle[place] = found.idle and not found.records
        if not found.records:
            self.past_gaps[place] = found.next_offset
        return found

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        self.forget(topic, partition)
        self._reader.seek(topic, partition, offset)

    def forget(self, topic: str, partition: int, /) -> None:
        place = TopicPartition(topic, partition)
        self.idle.pop(place, None)
        self.past_gaps.pop(place, None)
        self._reader.forget(topic, partition)

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        return self._reader.published(topic, partition)

    def wait(self, timeout_s: float, /) -> bool:
        return self._reader.wait(timeout_s)

    def close(self) -> None:
        self._reader.close()
