"""What was under way when a snapshot was taken is in what is made of it, too."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.values.partitioner import partition_of
from tailrace.history.snapshots.start_from_snapshot import start_from
from tailrace.runtime.preparing import prepare_log
from tailrace.spark.columns import pa
from tailrace.spark.source import TailraceSource
from tailrace.spark.writer import StateWriter
from tailrace.state.snapshots import MESSAGES
from tests.runtime.state_world import KEYS, ROUNDS, World
from tests.runtime.tallies import ticks


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    """It has messages that were sent and not read yet."""
    made = World(tmp_path)
    made.log.append_all(ticks(KEYS, ROUNDS))
    made.run()
    made.log.append_all(ticks(KEYS, 1, ROUNDS))
    made.run(numbers=range(1))
    made.take()
    yield made
    made.log.close()


def test_messages_that_were_under_way_are_in_an_edited_snapshot(world) -> None:
    before = world.snapshots().open()
    options = {
        "snapshot": str(world.folder / "snapshots"),
        "app": "tests.runtime.served:app",
        "actor": "Counter",
    }
    key = next(f"k{one}" for one in range(KEYS) if partition_of(f"k{one}".encode(), 4) == 0)  # has read all
    batch = pa.RecordBatch.from_pydict({"key": [key], "count": [1_000]})
    writer = TailraceSource(options).writer(from_arrow_schema(batch.schema), False)
    assert isinstance(writer, StateWriter)
    writer.commit([writer.write(iter([batch]))])
    edited = world.snapshots().open()
    assert edited.manifest.source == "edited"
    for number in range(4):
        assert list(edited.messages(number)) == list(before.messages(number))
    other = world.app.renamed("other").plan()
    world.run(other, start=world.start())
    world.run()
    audits = [
        {row: value for row, value in found.items() if row.startswith(b"sAuditor")} for found in world.rows()
    ]
    assert [
        {row: value for row, value in found.items() if row.startswith(b"sAuditor")}
        for found in world.rows("other")
    ] == audits


def test_a_snapshot_that_lacks_them_begins_nothing_elsewhere(world) -> None:
    made = world.snapshots().open().manifest
    assert any(file.table == MESSAGES for task in made.tasks for file in task.files)
    draft = world.snapshots().begin()
    tasks = tuple(msgspec.structs.replace(one, files=()) for one in made.tasks)
    world.snapshots().publish(
        msgspec.structs.replace(made, id=draft.id, created_ms=draft.created_ms, tasks=tasks, checksum="")
    )
    other = world.app.renamed("other").plan()
    prepare_log(world.log, other, create_declared=True)
    with pytest.raises(SnapshotMismatchError, match="were under way"):
        for number in range(4):
            start_from(other, number, world.log, world.start(), 1)
