"""``tailrace faust import``: what a table is made of, and what is refused. The Faust app itself is in tests/kafka/test_faust.py."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli import append as appending
from tailrace.core.errors import BadRecordError, OptionError
from tailrace.core.records import Output
from tailrace.faust.changelog import FaustTable, TableLayout
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicSettings
from tests.cli.commands import Ended, done, records, run
from tests.history.differences import from_the_log

APP = "tests.faust.takeover:app"
CHANGELOG = "shop-counts-changelog"
AT_MS = 1_700_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "log"
    done("topics", "apply", "--app", APP, "--log", place)
    return place


def write(
    folder: Path,
    changes: Iterable[tuple[int, bytes | None, bytes | None]],
    topic: str = CHANGELOG,
    partitions: int = 3,
) -> None:
    """Write partition, key and value of each change."""
    with closing(EmbeddedLog(folder)) as log:
        log.create_topic(topic, TopicSettings(partitions, compacted=False))
        for partition, key, value in changes:
            log.append_all([Output(topic, key, value, AT_MS)], partition)


def take(folder: Path, *arguments: object, table: str = "counts") -> Ended:
    return run("faust", "import", APP, "--from", f"faust://shop/{table}", "--log", folder, *arguments)


def rows(folder: Path) -> dict[str, int]:
    found = [json.loads(one.value) for _, one in records(folder, "counts")]
    assert len({one["key"] for one in found}) == len(found), "one row for each key"
    return {one["key"]: one["value"] for one in found}


@pytest.mark.one_seed_in(25)
def test_a_table_has_the_last_value_of_each_key_that_was_not_deleted(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        kept: dict[tuple[int, str], int] = {}
        with closing(EmbeddedLog(tmp_path / str(seed))) as log:
            log.create_topic(CHANGELOG, TopicSettings(3))
            for number in range(draw.randrange(60)):
                key = f"k{draw.randrange(12)}"
                partition = int(key[1:]) % 3
                if draw.random() < 0.3:
                    kept.pop((partition, key), None)
                    value = None
                else:
                    kept[partition, key] = number
                    value = str(number).encode()
                log.append_all([Output(CHANGELOG, json.dumps(key).encode(), value, number)], partition)
            table = FaustTable(log, "shop", "counts")
            assert table.read(is_shared_allowed=False) == len(kept)
            assert {(one.partition, one.key): one.value for one in table.rows()} == kept


def test_an_import_is_refused_behind_the_rows_of_one_that_was_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, [(n % 3, b'"k%d"' % n, b"%d" % n) for n in range(10)])
    with monkeypatch.context() as patched:
        patched.setattr(appending, "_ROWS_PER_COMMIT", 4)
        patched.setattr(FaustTable, "rows", rows_then_killed(FaustTable.rows, 6))
        take(folder)
    assert len(rows(folder)) == 4
    ended = take(folder)
    assert (ended.code, len(rows(folder))) == (1, 4)
    assert "the topic 'counts' has records: the rows are imported into an empty topic" in ended.err
    assert "Delete the topic, create it again" in ended.err


def rows_then_killed(read: Any, number: int) -> Any:
    """Stops the command in a row of its second reading, in which it appends."""
    readings: list[Any] = []

    def reading(self: FaustTable) -> Any:
        readings.append(self)
        for at, row in enumerate(read(self)):
            if len(readings) == 2 and at == number:
                raise KeyboardInterrupt
            yield row

    return reading


def test_of_a_table_with_an_invalid_row_nothing_is_imported(folder: Path) -> None:
    write(folder, [(0, b'"a"', b"1"), (0, b'"b"', b'"text"')])
    ended = take(folder)
    assert (ended.code, rows(folder)) == (1, {})
    assert "faust://shop/counts, row 2: Expected `int`, got `str`" in ended.err
    assert "Nothing is imported" in ended.err


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ([(0, None, b"1")], (), "a record of the changelog has no key"),
        ([(0, b"null", b"1")], (), "got `null`"),
        ([(0, b"\xff\x00", b"1")], (), "the key cannot be decoded"),
        ([(1, b'"a"', b"\xff")], (), "changelog partition 1, offset 0, key 'a'"),
        ([(0, b'"a"', b"1.5")], (), "Expected `int`, got `float`"),
        ([(0, b'["a",[0.0,59.9]]', b"1")], (), "say --windowed, or --not-windowed"),
        *(([(0, b'[%d,"a"]' % action, b"1")], (), "of a SetTable, [action, key]") for action in (1, 2, 15)),
        ([(0, b'"a"', b"1")], ("--windowed",), "have no field 'start_ms'"),
        ([(0, b'"a"', b"1")], ("--windowed", "--into", "hours"), "is not that of a window"),
        ([(0, b'"a"', b"1"), (2, b'"a"', b"2")], (), "in the partitions 0 and 2"),
        ([(0, b'"a"', b"1")], ("--value-codec", "pickle"), "pickle_restricted reads"),
        (
            [(0, b'"a"', b"1")],
            ("--value-codec", "pickle_fickling"),
            "by the codec 'pickle_fickling', which may run",
        ),
        ([(0, b'"a"', b"1")], ("--key-codec", "jason"), "by the codec 'jason', which may run"),
        ([(0, b'"a"', b"1")], ("--into", "orders"), "have no field 'value'"),
        ([(0, b'"a"', b"1")], ("--new-input", "nothing"), "has no input 'nothing'"),
        ([(0, b'"' + b"k" * (2 << 20) + b'"', b"1")], (), "the record has"),
    ],
)
def test_what_is_no_table_of_this_kind_is_refused_with_its_place(
    folder: Path, changes: list[Any], arguments: tuple[str, ...], message: str
) -> None:
    write(folder, changes)
    ended = take(folder, *arguments)
    assert ended.code != 0
    assert message in ended.err, ended.err
    assert "Traceback" not in ended.err
    assert records(folder, "counts") == []


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("faust://shop/countz", "Did you mean 'shop-counts-changelog'?"),
        ("faust://shop", "is no table: write faust://APP_ID/TABLE"),
        ("kafka://shop/counts", "is no table: write faust://APP_ID/TABLE"),
        ("faust://takeover/counts", "both would have one consumer group"),
    ],
)
def test_a_wrong_name_of_a_table_is_refused(folder: Path, place: str, message: str) -> None:
    write(folder, [(0, b'"a"', b"1")])
    write(folder, [(0, b'"a"', b"1")], "takeover-counts-changelog")
    ended = run("faust", "import", APP, "--into", "counts", "--from", place, "--log", folder)
    assert ended.code != 0
    assert message in ended.err, ended.err


def test_an_input_with_records_that_faust_has_never_committed_has_to_be_named(folder: Path) -> None:
    write(folder, [(0, b'"a"', b"1")])
    with closing(EmbeddedLog(folder)) as log:
        log.append_all([Output("orders", b"a", b'{"key":"a","at_ms":%d}' % AT_MS, AT_MS)])
    ended = take(folder)
    assert ended.code == 1
    assert "which has 1 record: it has never read it, or the offset has expired" in ended.err, ended.err
    assert rows(folder) == {}
    assert take(folder, "--new-input", "orders").code == 0


def test_binary_and_restricted_pickles_are_read_by_their_codecs(tmp_path: Path) -> None:
    with closing(EmbeddedLog(tmp_path)) as log:
        log.create_topic(CHANGELOG, TopicSettings(3))
        from faust.serializers import codecs  # takes half a second, in each worker if it stood above

        pickled = codecs.dumps("pickle_restricted", {"tags": {"x", "y"}, 3: 1.5})
        log.append_all([Output(CHANGELOG, b"\x00\xff", pickled, AT_MS)], 1)
        table = FaustTable(log, "shop", "counts", TableLayout("raw", "pickle_restricted"))
        table.read(is_shared_allowed=False)
        assert [(one.key, one.value) for one in table.rows()] == [(b"\x00\xff", {"tags": {"x", "y"}, 3: 1.5})]
        with pytest.raises(OptionError):
            FaustTable(log, "shop", "counts", TableLayout("json", "binary|pickle"))


def test_a_key_in_two_partitions_is_two_rows_for_events_that_name_the_partition(tmp_path: Path) -> None:
    with closing(EmbeddedLog(tmp_path)) as log:
        log.create_topic(CHANGELOG, TopicSettings(3))
        for partition in (0, 2):
            log.append_all([Output(CHANGELOG, b'"all"', b"%d" % partition, AT_MS)], partition)
        table = FaustTable(log, "shop", "counts")
        with pytest.raises(BadRecordError, match="Give the events a field 'partition'"):
            table.read(is_shared_allowed=False)
        assert table.read(is_shared_allowed=True) == 2
        assert [(one.partition, one.key, one.value) for one in table.rows()] == [(0, "all", 0), (2, "all", 2)]


def test_keys_that_look_like_those_of_windows_and_sets_are_taken_as_they_are_if_that_is_said(
    tmp_path: Path,
) -> None:
    keys = [[1, "a"], ["a", [0.0, 59.9]], [15, [0.0, 59.9]]]
    with closing(EmbeddedLog(tmp_path)) as log:
        log.create_topic(CHANGELOG, TopicSettings(1))
        log.append_all([Output(CHANGELOG, json.dumps(key).encode(), b"1", AT_MS) for key in keys])
        table = FaustTable(log, "shop", "counts", TableLayout(is_windowed=False))
        table.read(is_shared_allowed=False)
        assert [(one.key, one.start_ms, one.error) for one in table.rows()] == [
            (key, None, "") for key in keys
        ]


def test_a_changelog_that_grows_while_it_is_imported_is_an_error(folder: Path) -> None:
    write(folder, [(0, b'"a"', b"1"), (0, b'"b"', b"1")])
    with closing(EmbeddedLog(folder)) as log:
        table = FaustTable(log, "shop", "counts")
        table.read(is_shared_allowed=False)
        found = table.rows()
        next(found)
        log.append_all([Output(CHANGELOG, b'"c"', b"1", AT_MS)], 0)
        with pytest.raises(Exception, match="was changed while it was imported"):
            list(found)


def handed_over(folder: Path, committed: int = 2) -> tuple[TopicPartition, Ended]:
    """Faust has counted 5, and has read some of 4 orders; its table is imported."""
    places = [TopicPartition("orders", number) for number in range(3)]
    with closing(EmbeddedLog(folder)) as log:
        orders = [
            Output("orders", b"a", b'{"key":"a","at_ms":%d}' % (AT_MS + n), AT_MS + n) for n in range(4)
        ]
        (place,) = log.append_all(orders)
        commit(log, "shop", {one: (committed if one == place else 0) for one in places})
    write(folder, [(0, b'"a"', b"5")])
    return place, take(folder, "--json")


def commit(log: EmbeddedLog, group: str, offsets: dict[TopicPartition, int]) -> None:
    writer = log.writer("outside")
    writer.commit(offsets, group)
    writer.close()


def totals(folder: Path) -> list[int]:
    return [json.loads(one.value)["count"] for _, one in records(folder, "totals")]


def test_inputs_begin_at_the_committed_offsets(folder: Path) -> None:
    place, ended = handed_over(folder)
    assert ended.lines[0]["begins"]["orders"][str(place.partition)] == 2
    done("run", APP, "--until-end", "--log", folder, "--state", folder.parent / "state")
    assert totals(folder) == [5, 6, 7]


REGROUPED = "tests.faust.takeover:regrouped"
GROUPED = "shop-shop.count-orders-Order.key-repartition"
SENT = "shop-shop.ship"


def grouped(folder: Path, counted: int) -> None:
    """Faust has read all of 12 orders, has sent them to itself by their key, and has counted some. What it has sent to another agent it has
    read to the end, and of what others have sent nothing.
    """
    orders = [Output("orders", b"o%d" % n, order(f"k{n % 4}", n).value, AT_MS + n) for n in range(12)]
    with closing(EmbeddedLog(folder)) as log:
        for name in (GROUPED, SENT, "shop-other"):
            log.create_topic(name, TopicSettings(3))
        log.append_all(orders)
        read = {place: log.end_offset(*place) for place in (TopicPartition("orders", n) for n in range(3))}
        for n, one in enumerate(orders):
            ends = log.append_all([one._replace(topic=GROUPED, key=b"k%d" % (n % 4))])
            read |= ends if n < counted else {}
        commit(log, "shop", {**read, **log.append_all([orders[0]._replace(topic=SENT)])})
        log.append_all([orders[0]._replace(topic="shop-other")])
    there = Counter(f"k{n % 4}" for n in range(counted))
    write(folder, [(0, b'"%s"' % key.encode(), b"%d" % count) for key, count in there.items()])


def test_what_faust_has_sent_to_itself_and_not_read_is_refused_unless_it_is_left(folder: Path) -> None:
    grouped(folder, 7)
    ended = take(folder)
    assert (ended.code, rows(folder)) == (1, {})
    assert f"reads '{GROUPED}', has not read 5 records there" in ended.err
    assert f"--leave {GROUPED}" in ended.err
    assert f"there is no topic '{SENT}'" in take(folder, "--leave", GROUPED, "--leave", SENT).err
    ended = take(folder, "--leave", GROUPED)
    assert (ended.code, sum(rows(folder).values())) == (0, 7)
    assert f"5 records of {GROUPED} will be handled by nobody" in ended.err


def test_what_faust_has_grouped_and_never_read_is_refused(folder: Path) -> None:
    grouped(folder, 0)
    with closing(EmbeddedLog(folder)) as log:
        log.create_topic(GROUPED.replace("Order", "Other"), TopicSettings(1))
        log.append_all([order("k", 1)._replace(topic=GROUPED.replace("Order", "Other"))])
    ended = take(folder, "--leave", GROUPED)
    assert "Other.key-repartition', has not read 1 record there" in ended.err


@pytest.mark.parametrize(("counted", "more"), [(0, ("--new-input", GROUPED)), (7, ()), (12, ())])
def test_an_app_that_reads_what_faust_has_sent_to_itself_counts_each_order_once(
    folder: Path, counted: int, more: tuple[str, ...]
) -> None:
    grouped(folder, counted)
    done("topics", "apply", "--app", REGROUPED, "--log", folder)
    done("faust", "import", REGROUPED, "--from", "faust://shop/counts", "--log", folder, *more)
    with closing(EmbeddedLog(folder)) as log:
        log.append_all([order("k1", 12)._replace(key=b"o12")])
    done("run", REGROUPED, "--until-end", "--log", folder, "--state", folder.parent / "s")
    assert last_totals(folder) == {"k0": 3, "k1": 4, "k2": 3, "k3": 3}


@pytest.mark.parametrize(
    ("app", "written"), [("naive", '"2023-11-14T22:13:20.%d00"'), ("seconds", "1700000000.%d")]
)
def test_events_whose_times_have_no_zone_or_are_in_seconds_follow_the_rows(
    folder: Path, app: str, written: str
) -> None:
    events = [b'{"key":"a","at":%s}' % (written % n).encode() for n in range(4)]
    with closing(EmbeddedLog(folder)) as log:
        (place,) = log.append_all([Output("orders", b"a", one, 0) for one in events])
        commit(log, "shop", {**{TopicPartition("orders", n): 0 for n in range(3)}, place: 2})
    write(folder, [(0, b'"a"', b"5")])
    where = (f"tests.faust.takeover:{app}", "--log", folder)
    done("topics", "apply", "--app", *where)
    done("faust", "import", *where, "--from", "faust://shop/counts")
    done("run", *where, "--end-of-input", "--state", folder.parent / "state")
    (found,) = done("get", where[0], "Ordered", "a", "times", "--json", *where[1:]).lines
    assert found["value"] == [5, AT_MS + 200, AT_MS + 300]


def test_they_do_so_in_stages_and_for_every_app_that_reads_the_rows(folder: Path) -> None:
    """The oracle is the table and the orders that Faust had not read: 5 and 2."""
    handed_over(folder)
    done("run", f"{APP}@second", "--until-end", "--log", folder, "--state", folder.parent / "second")
    assert totals(folder) == [5, 6, 7]
    done("run", APP, "--until-end", "--log", folder, "--state", folder.parent / "state")
    made = ("--to", folder.parent / "made", "--order", "stages", "--workers", 1)
    for name in (APP, f"{APP}@new"):
        done("rebuild", name, "--log", folder, *made)
    again = ("--from-snapshot", folder.parent / "made", "--until-end", "--log", folder)
    done("run", f"{APP}@new", *again, "--state", folder.parent / "new")
    (said,) = done("get", f"{APP}@new", "Customer", "a", "count", "--json", "--log", folder).lines
    assert said["value"] == 7
    assert from_the_log(APP, folder, snapshot=folder.parent / "made") == []


def test_they_do_so_if_the_log_has_forgotten_the_offsets_of_its_groups(folder: Path) -> None:
    place, _ = handed_over(folder)
    with closing(EmbeddedLog(folder)) as log:
        commit(log, "takeover#begun", dict.fromkeys((place,), 0))
        commit(log, "shop", dict.fromkeys((place,), 0))
    done("run", APP, "--until-end", "--log", folder, "--state", folder.parent / "state")
    assert totals(folder) == [5, 6, 7]


def test_they_do_so_on_the_log_that_the_app_has_moved_to(folder: Path) -> None:
    handed_over(folder)
    done("run", APP, "--until-end", "--log", folder, "--state", folder.parent / "state")
    target, made = folder.parent / "target", folder.parent / "made"
    done("migrate", "--app", APP, "--from", folder, "--to", target)
    done("rebuild", APP, "--log", target, "--to", made, "--order", "stages", "--workers", 1)
    assert from_the_log(APP, target, snapshot=made) == []


def test_two_tables_of_different_moments_are_refused(folder: Path) -> None:
    place, _ = handed_over(folder)
    with closing(EmbeddedLog(folder)) as log:
        commit(log, "shop", {place: 3})
    write(folder, [(0, b'"a"', b"{}")], "shop-kept-changelog")
    ended = take(folder, table="kept")
    assert ended.code == 1
    assert "stand for 'orders' partition" in ended.err
    assert "up to offset 2, and those of 'kept' up to 3" in ended.err


def order(key: str, number: int) -> Output:
    at_ms = AT_MS + number
    return Output("orders", key.encode(), b'{"key":"%s","at_ms":%d}' % (key.encode(), at_ms), at_ms)


def last_totals(folder: Path) -> dict[str, int]:
    found = [json.loads(one.value) for _, one in records(folder, "totals")]
    return {one["key"]: one["count"] for one in found}


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_the_changelog_may_have_another_number_of_partitions_and_orders_come_while_it_is_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Orders come before the import, at each row of it, and after it. The oracle is the table and the orders after the offsets."""
    keys = [f"k{n}" for n in range(8)]
    draw = random.Random(partitions)
    table = {key: draw.randrange(1, 9) for key in keys[:6]}
    rest = Counter[str]()

    def come(count: int) -> None:
        some = [draw.choice(keys) for _ in range(count)]
        with closing(EmbeddedLog(folder)) as log:
            log.append_all([order(key, draw.randrange(50_000)) for key in some])
        rest.update(some)

    come(20)
    with closing(EmbeddedLog(folder)) as log:
        commit(
            log,
            "shop",
            {place: log.end_offset(*place) for place in (TopicPartition("orders", n) for n in range(3))},
        )
    rest.clear()  # Faust has read these: they are in its table
    come(5)
    write(
        folder,
        [(n % partitions, b'"%s"' % key.encode(), b"%d" % table[key]) for n, key in enumerate(table)],
        partitions=partitions,
    )
    monkeypatch.setattr(appending, "_ROWS_PER_COMMIT", 2)
    read = FaustTable.rows

    def beside(self: FaustTable) -> Any:
        for row in read(self):
            come(3)
            yield row

    with monkeypatch.context() as patched:
        patched.setattr(FaustTable, "rows", beside)
        assert take(folder).code == 0
    assert rows(folder) == table
    for _ in range(2):
        done("run", APP, "--until-end", "--log", folder, "--state", folder.parent / "state")
        assert last_totals(folder) == Counter(table) + rest
        come(7)


def test_an_input_with_another_number_of_partitions_than_the_app_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    done("log", "create", "orders", "--partitions", 2, "--log", folder)
    assert run("topics", "apply", "--app", APP, "--log", folder).code == 4
    write(folder, [(0, b'"a"', b"1")])
    take(folder)
    ended = run("run", APP, "--until-end", "--log", folder, "--state", tmp_path / "state")
    assert ended.code == 1
    assert "partitions is 2, and must be 3" in ended.err
