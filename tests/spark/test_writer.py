from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 (the name that PySpark's users know)
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace.core import rows
from tailrace.core.errors import TailraceError
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.runtime.preparing import prepare_log
from tailrace.spark.columns import pa
from tailrace.spark.source import TailraceSource
from tailrace.spark.writer import StateWriter
from tailrace.state import MemoryStore
from tests.spark import travel
from tests.spark.reading import answer

APP = "tests.spark.travel:app"
COUNT = 120
Rows = list[dict[bytes, bytes]]


@pytest.fixture(scope="module")
def lived(tmp_path_factory) -> Iterator[travel.Lived]:
    made = travel.Lived(tmp_path_factory.mktemp("edited"), COUNT)
    made.run()
    made.take(name="before")
    yield made
    made.log.close()


@pytest.fixture
def table(spark, lived):
    return (
        spark.read.format("tailrace")
        .options(snapshot=lived.uri, app="travel", actor="Plane", id="before")
        .load()
    )


def write(lived: travel.Lived, frame: Any, name: str, **more: str) -> None:
    options = {"snapshot": lived.uri, "app": APP, "actor": "Plane", "id": "before", "name": name, **more}
    frame.write.format("tailrace").mode("append").options(**options).save()


def kept(lived: travel.Lived, which: str) -> Rows:
    snapshot = lived.snapshot(which)
    return [dict(snapshot.rows(number)) for number in range(4)]


def test_a_table_that_is_written_as_it_was_read_changes_no_byte(table, lived):
    write(lived, table, "same")
    assert kept(lived, "same") == kept(lived, "before")
    manifest = lived.snapshot("same").manifest
    assert (manifest.source, manifest.kind) == ("edited", "incremental")
    assert [one.cut for one in manifest.tasks] == [one.cut for one in lived.snapshot("before").manifest.tasks]
    written = [file for task in manifest.tasks for file in task.files if file.table == "state"]
    assert sum(file.rows for file in written) == len(travel.PLANES)
    assert not list((lived.folder / "snapshots").rglob("edits-*"))


def test_a_column_that_is_changed_changes_its_field_and_nothing_else(table, lived):
    some = table.where(F.col("key") < "N110").select("key", (F.col("miles") + 1000).alias("miles"))
    write(lived, some, "more")
    before, after = kept(lived, "before"), kept(lived, "more")
    decode = travel.app.plan().actor_of(travel.Plane).decode
    changed = 0
    for was, now in zip(before, after, strict=True):
        assert was.keys() == now.keys()
        for row, value in now.items():
            if value == was[row]:
                continue
            parts, old, new = (
                rows.read_state_row(row),
                decode(was[row][rows.start_of_fields(was[row]) :]),
                decode(value[rows.start_of_fields(value) :]),
            )
            assert (parts.rest, value[:1]) == (b"", was[row][:1])
            assert parts.key < b"N110"
            assert (new.miles, new.last) == (old.miles + 1000, old.last)
            changed += 1
    assert changed == 10


def put(lived: travel.Lived, frame: dict[str, Any], **more: str) -> None:
    """Write a table as Spark does, but in this process: a task for each row."""
    options = {"snapshot": lived.uri, "app": APP, "actor": "Plane", "id": "before", **more}
    batch = pa.RecordBatch.from_pydict(frame)
    schema = from_arrow_schema(batch.schema)
    writer = TailraceSource(options).writer(schema, overwrite=False)
    assert isinstance(writer, StateWriter)
    parts = [batch.slice(at, 1) for at in range(batch.num_rows)]
    writer = pickle.loads(pickle.dumps(writer))
    try:
        writer.commit([writer.write(iter([one])) for one in parts])
    except TailraceError:
        writer.abort([])
        raise


def test_a_service_starts_from_it_and_goes_on(lived):
    put(lived, {"key": travel.PLANES, "miles": [1_000_000] * len(travel.PLANES)}, name="rich")
    one = travel.trip(COUNT)
    lived.log.append_all([travel.output(travel.trips, one, travel.ms(one.at))])
    start = Start(lived.snapshot("rich"), "there", replace=False)
    states = [MemoryStore() for _ in range(4)]
    plan = travel.app.renamed("travels").plan()
    prepare_log(lived.log, plan, create_declared=True)

    def begin(number: int) -> None:
        start_from(plan, number, lived.log, start, 1)

    travel.live(plan, lived.log, states, begin)
    decode = plan.actors[0].decode
    prefix = rows.actor_prefix("Plane")
    found = {
        rows.read_state_row(row).key.decode(): decode(value[rows.start_of_fields(value) :]).miles
        for store in states
        for row, value in store.scan(prefix, rows.prefix_end(prefix))
        if not rows.read_state_row(row).rest
    }
    assert found == {tail: 1_000_000 + (one.miles if tail == one.tail else 0) for tail in travel.PLANES}


def test_a_key_that_was_not_there_begins_with_defaults(lived):
    put(lived, {"key": ["N999"], "miles": [5]}, name="new")
    (row,) = answer(snapshot=lived.uri, app="travel", actor="Plane", id="new", keys='["N999"]').rows
    assert (row["miles"], row["last"]) == (5, None)


@pytest.mark.parametrize(
    ("frame", "more", "said"),
    [
        ({"miles": [1]}, {}, "no column 'key'"),
        ({"key": ["N100"], "miles": ["x"]}, {}, "not a value for the field 'miles'"),
        ({"key": ["N100"], "miles": pa.array([None], pa.int64())}, {}, "not a value for the field 'miles'"),
        ({"key": ["N100"], "speed": [3]}, {}, "not a plain field of Plane.*miles"),
        ({"key": ["N100"], "cabins": [3]}, {}, "but a MapState or ListState"),
        ({"key": ["N1", "N1"]}, {}, "'N1' is in two rows"),
        ({"key": [3]}, {}, "3 is not a key of Plane"),
        ({"key": ["N100"]}, {"app": "travel"}, "the app's code"),
        (
            {"key": ["N100"]},
            {"app": "tests.spark.travel:other"},
            "not the one that the snapshot was written with",
        ),
        ({"key": ["N100"]}, {"field": "cabins"}, "'field' is not allowed"),
        ({"key": ["N100"]}, {"actor": "Plain"}, "no actor 'Plain'"),
        ({"key": ["N100"]}, {"id": "nobody"}, "no snapshot 'nobody'"),
        ({"key": ["N100"]}, {"name": "before"}, "already a savepoint named 'before'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_published(lived, frame, more, said):
    before = folders(lived)
    with pytest.raises(TailraceError, match=said):
        put(lived, frame, **{"name": "wrong", **more})
    assert folders(lived) == before


def test_an_overwritten_table_is_refused(lived):
    options = {"snapshot": lived.uri, "app": APP, "actor": "Plane"}
    with pytest.raises(TailraceError, match="cannot be overwritten"):
        TailraceSource(options).writer(from_arrow_schema(pa.schema([("key", pa.string())])), overwrite=True)


def test_spark_tells_what_is_wrong(table, lived):
    before = folders(lived)
    with pytest.raises(
        Exception, match=r"Plane 'N1\d\d': 'x' is not a value for the field 'miles'.*Cast the column"
    ):
        write(lived, table.select("key", F.lit("x").alias("miles")), "wrong")
    assert folders(lived) == before


def folders(lived: travel.Lived) -> set[str]:
    return {one.name for one in (lived.folder / "snapshots" / "travel").iterdir()}
