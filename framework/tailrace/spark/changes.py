"""The changes of an actor's state as a table, or as a stream: from the changelog of the app.

There is a row for each key and commit that changed it, in the order of the changelog: the key, the plain fields as they were then,
and ``_deleted``. Entries of maps and lists, and timers, are rows of their own in the changelog, and are left out; a change of a key's
timers can write its fields again as they are.

``_commit`` is the offset of the cut that ends the commit. Only whole commits are read: a table, and each batch of a stream,
ends behind a cut. Where compaction has removed a cut, ``_commit`` is that of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import types

from tailrace.core import rows
from tailrace.core.errors import TopicReplacedError, UsageError
from tailrace.core.records import InputRecord
from tailrace.core.suggestions import did_you_mean
from tailrace.history.reading.changelog import changes, last_cut
from tailrace.history.reading.generations import located
from tailrace.history.reading.stretches import batches
from tailrace.log.interface import OneCommitLog, TopicPartition
from tailrace.processes.app_loading import find_app
from tailrace.spark.arrow import MisfitError, arrow_schema, batch
from tailrace.spark.columns import in_spark, struct_type
from tailrace.spark.options import Options
from tailrace.spark.topics import (
    ANSWER_S,
    AT_ONCE,
    LOAD_AGAIN,
    WHOLE,
    OpenLog,
    Range,
    Slice,
    TopicReader,
    TopicTable,
    chosen,
)
from tailrace.state.columns import Column, plain
from tailrace.state.snapshots.actors import Entry, StoredActor

_DELETED, _COMMIT = "_deleted", "_commit"
_PARTITION, _OFFSET, _TIMESTAMP = "_partition", "_offset", "_timestamp"
_Change = tuple[bytes, InputRecord, int]
"""A key, the record of its row, and the offset of the commit."""


class ChangeTable(TopicTable):
    """The changes of an actor of an app, by the declaration of the app.

    Raises:
        TailraceError: An option is wrong, or names something that does not exist.
    """

    def __init__(self, options: Options, open_log: OpenLog) -> None:
        options.refuse("archive", because="the changes of a state are read from the log")
        options.refuse(
            *("field", "table", "id", "undecodable", "startingTime", "endingTime"),
            *("recordsPerTask", "recordsPerBatch"),
            because="the changes of a state are rows of fields, in whole commits",
        )
        self.options, self.open_log = options, open_log
        plan, name = find_app(options.required("app")).plan(), options.required("actor")
        actors = {one.name: one for one in plan.actors}
        if name not in actors:
            hint = did_you_mean(name, actors, f"Its actors are: {', '.join(actors)}.")
            raise UsageError(f"the app {plan.app!r} has no actor {name!r}", hint=hint)
        self._plan = plan
        self.actor = StoredActor(name, actors[name].schema)
        self.partitioned, self.per_task = True, WHOLE
        own = [
            Column(_DELETED, types.BooleanType()),
            Column(_COMMIT, types.LongType()),
            Column(_PARTITION, types.IntegerType()),
            Column(_OFFSET, types.LongType()),
            Column(_TIMESTAMP, types.TimestampType()),
        ]
        fields = [self.actor.key_column(), *self.actor.field_columns()]
        if twice := {one.name for one in own} & {one.name for one in fields}:
            raise UsageError(f"the actor {name!r} has a field {min(twice)!r}, which is a column of the log")
        self.columns = chosen([*map(in_spark, fields), *own], options.names("columns"))

    def __reduce__(self) -> tuple[Any, ...]:
        return ChangeTable, (self.options, self.open_log)

    def cut(self) -> dict[str, str]:
        """See ``TopicTable.cut``. The topic follows from the app."""
        return {name: text for name, text in super().cut().items() if name != "topic"}

    def noted_id(self) -> str:
        """See ``TopicTable.noted_id``: what follows the name of the changelog, as an upgrade of the app begins another."""
        return super().noted_id().partition("#")[2]

    def check_topic(self, log: OneCommitLog) -> str:
        """See ``TopicTable.check_topic``. It also finds the changelog that has the state now."""
        self.topic = located(self._plan, log).changelog_topic
        before = super().noted_id().partition("#")[0]
        if before not in ("", self.topic):
            raise TopicReplacedError(
                f"the app was upgraded since the offsets were noted, which are of {before!r}: its state is in another changelog",
                topic=self.topic,
                hint=LOAD_AGAIN,
            )
        return f"{self.topic}#{super().check_topic(log)}"

    def keys(self) -> frozenset[bytes] | None:
        """See ``TopicTable.keys``."""
        return self.options.keys(self.actor.key_codec)

    def spans(self, log: OneCommitLog, ends: Sequence[int]) -> list[Range]:
        """See ``TopicTable.spans``; each ends behind a cut."""
        return super().spans(log, [self._behind_cut(log, number, end) for number, end in enumerate(ends)])

    def _behind_cut(self, log: OneCommitLog, number: int, end: int) -> int:
        found = last_cut(log, TopicPartition(self.topic, number), end)
        return log.start_offset(self.topic, number) if found is None else found.offset + 1

    def reader(self) -> TopicReader:
        """See ``TopicTable.reader``."""
        return ChangeReader(self)


class ChangeReader(TopicReader):
    """Reads the changes of an actor; see the head of this file."""

    def __init__(self, table: ChangeTable) -> None:
        super().__init__(table)
        self._table = table

    def _read(self, log: OneCommitLog, part: Slice) -> Iterator[Any]:
        some: list[_Change] = []
        for one in self._found(log, part):
            some.append(one)
            if len(some) == AT_ONCE:
                yield self._batch(part.partition, some)
                some = []
        if some:
            yield self._batch(part.partition, some)

    def _found(self, log: OneCommitLog, part: Slice) -> Iterator[_Change]:
        """The value rows of the actor, each with its commit."""
        place, prefix = (
            TopicPartition(self._table.topic, part.partition),
            rows.actor_prefix(self._table.actor.name),
        )
        pending: dict[bytes, InputRecord] = {}
        for records in batches(
            log, *place, part.start, part.stop, whole=True, at_once=AT_ONCE, patience_s=ANSWER_S
        ):
            changes(place, records)  # refuses what no task has written
            for one in records:
                if one.key == rows.CUT_ROW:
                    yield from ((key, record, one.offset) for key, record in pending.items())
                    pending = {}
                elif one.key is not None and one.key.startswith(prefix):
                    row = rows.read_state_row(one.key)
                    if not row.rest and (self.keys is None or row.key in self.keys):
                        pending[row.key] = one
        # The part ends behind a cut, which compaction may have removed since.
        yield from ((key, record, part.stop - 1) for key, record in pending.items())

    def _batch(self, number: int, some: list[_Change]) -> Any:
        table, names = self._table, [one.name for one in self._table.columns]
        decode = table.actor.decoder(names, number)
        stored = [Entry(key, "value", None, one.value) for key, one, _ in some if one.value is not None]
        found = iter(decode(stored))
        fields: list[Mapping[str, Any]] = [{} if one.value is None else next(found) for _, one, _ in some]
        values: dict[str, list[Any]] = {
            table.actor.key_name: plain([table.actor.key_codec.decode(key) for key, _, _ in some]),
            _DELETED: [one.value is None for _, one, _ in some],
            _COMMIT: [commit for _, _, commit in some],
            _PARTITION: [number] * len(some),
            _OFFSET: [one.offset for _, one, _ in some],
            _TIMESTAMP: [one.timestamp_ms * 1000 for _, one, _ in some],
        }
        columns = [values[name] if name in values else [one.get(name) for one in fields] for name in names]
        try:
            return batch(arrow_schema(struct_type(table.columns)), table.columns, columns)
        except MisfitError as error:
            raise UsageError(str(error), hint="Leave the column out (option columns).") from error
