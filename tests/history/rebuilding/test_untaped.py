"""History without a tape is taken in stages: the same bytes every time, and, where order leaves no choice, the live ones."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.errors import InputsChangedError, UnknownTopicError
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.beginnings import lineage_of
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import any_app, lived, shops
from tests.history.rebuilding.lived import TALLY, done, rebuilt, request
from tests.runtime.joining import Service
from tests.runtime.tallies import ticks

SHOPS = "tests.history.rebuilding.shops:app"


def test_what_has_never_run_comes_to_what_it_would_have_emitted(tmp_path: Path) -> None:
    sold, never = tmp_path / "sold", tmp_path / "never"
    for folder in (sold, never):
        lived.append(folder, shops.sales(300), {"sales": 2})
    lived.live_on(sold, SHOPS)
    report, snapshot = done(never, SHOPS, outputs=f"parquet:{never / 'out'}")
    assert report.order == snapshot.manifest.source == "stages"
    assert any("has never run on this log" in one for one in snapshot.manifest.notes)
    made, emitted = lived.outputs(never / "out", snapshot, "totals"), lived.read(sold, "totals")
    assert sorted((one.key, one.value, one.headers) for one in made) == sorted(
        (one.key, one.value, one.headers) for one in emitted
    )
    assert report.events == 300
    assert [tape.decode_cut(one.cut).lineage for one in snapshot.manifest.tasks] == [
        lineage_of("shops", number) for number in range(2)
    ]


def test_it_ends_where_the_service_stands_though_producers_have_written_more(tmp_path: Path) -> None:
    lived.append(tmp_path, shops.sales(200), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    lived.append(tmp_path, shops.sales(100, first=200), {})
    _, base = done(tmp_path, SHOPS, order="stages")
    stands = [
        tape.decode_cut(one.cut or b"").positions for one in lived.live(tmp_path, find_app(SHOPS).plan())
    ]
    assert [tape.decode_cut(one.cut).positions for one in base.manifest.tasks] == stands


def test_inputs_that_are_not_there_or_of_another_number_are_told(tmp_path: Path) -> None:
    lived.append(tmp_path, [], {"other": 2})
    with pytest.raises(UnknownTopicError, match="no such topic"):
        rebuild(request(tmp_path, SHOPS), LocalEngine(1))
    lived.append(tmp_path, shops.sales(3), {"sales": 3})
    with pytest.raises(InputsChangedError, match="'sales' has 3 partitions"):
        rebuild(request(tmp_path, SHOPS), LocalEngine(1))


def test_messages_that_a_snapshot_stands_for_are_not_left_out(tmp_path: Path) -> None:
    """The inbox of an app that was started from a snapshot begins with that: nothing is read from it."""
    lived.serve_tallies(tmp_path)
    done(tmp_path)
    lived.append(tmp_path, ticks(20, 2, 3), {"ticks": 4})
    other = f"{TALLY}@other"
    lived.live_on(tmp_path, other, str(tmp_path / "snapshots"))
    report, whole = done(tmp_path, other, order="stages")
    assert any("comes from this code" in one for one in report.notes)
    assert report.events == 200
    _, some = done(tmp_path, other, order="stages", keys=("k3",))
    wanted = [
        (row, value)
        for one in rebuilt(whole)
        for row, value in one.rows
        if rows.read_state_row(row).key == b"k3"
    ]
    assert [pair for one in rebuilt(some) for pair in one.rows] == wanted != []
    _, snapshot = done(tmp_path, other)
    assert rebuilt(snapshot) == lived.live(tmp_path, find_app(other).plan())


class Passed(msgspec.Struct, frozen=True):
    key: str
    at: int


def passing(seen: list[Passed], **options: Any) -> str:
    """An app that writes what it reads to a topic of its own, which it reads as well."""
    app = tr.App("passing", partitions=1)
    first = app.topic("first", Passed, key="key", event_time="at")
    second = app.topic("second", Passed, key="key", event_time="at", **options)

    @app.process(first)
    def one(event: Passed, ctx: tr.Context[str]) -> None:
        ctx.emit(second, event)

    @app.process(second)
    def two(event: Passed, ctx: tr.Context[str]) -> None:
        seen.append(event)

    return any_app.place(app)


@pytest.mark.parametrize("topics", [{"first": 1, "second": 1}, {"first": 1}])
def test_what_the_app_writes_itself_is_read_though_the_log_does_not_have_it(
    tmp_path: Path, topics: dict[str, int]
) -> None:
    seen, event = list[Passed](), Passed("a", 100_000)
    lived.append(tmp_path, [Output("first", b"a", msgspec.json.encode(event), 0)], topics)
    report, _ = done(tmp_path, passing(seen))
    assert report.order == "stages"
    assert seen == [event]


def test_what_others_write_to_a_topic_of_the_app_is_read_in_its_place_and_what_the_app_wrote_is_not(
    tmp_path: Path,
) -> None:
    seen = list[Passed]()
    name = passing(seen, watermark=True)
    own = [Passed("a", at) for at in (100_000, 300_000)]
    others = [Passed("b", at) for at in (200_000, 400_000)]
    records = [Output("first", b"a", msgspec.json.encode(one), one.at) for one in own]
    records += [Output("second", b"b", msgspec.json.encode(one), one.at) for one in others]
    lived.append(tmp_path, records, {"first": 1, "second": 1})
    lived.live_on(tmp_path, name)
    seen.clear()
    done(tmp_path, name, order="stages")
    assert seen == [own[0], others[0], own[1], others[1]]


def counting(name: str, topic: str, type_: Any, **options: Any) -> str:
    """An app that counts what it reads."""
    app = tr.App(name, partitions=2)
    found: tr.Topic[Any, str] = app.topic(topic, type_, **options)

    @app.actor
    class Seen(tr.Actor):
        count: int = 0

        @tr.process(found)
        def saw(self, event: Any, ctx: tr.Context[str]) -> None:
            self.count += 1

    return any_app.place(app)


def test_the_error_for_a_renamed_input_names_the_option_that_reads_the_former_topic(tmp_path: Path) -> None:
    name = counting("passing", "former", Passed, key="key", event_time="at")
    lived.append(tmp_path, [Output("former", b"a", msgspec.json.encode(Passed("a", 1)), 1)], {"former": 2})
    lived.live_on(tmp_path, name)
    counting("passing", "latter", Passed, key="key", event_time="at")
    for order in ("auto", "tape"):
        with pytest.raises(
            InputsChangedError, match="no longer reads 'former' and now reads 'latter'"
        ) as caught:
            done(tmp_path, name, order=order)
        assert "--order stages, which reads what the code declares now" in caught.value.hint
    with pytest.raises(UnknownTopicError, match="declare its former topic"):
        done(tmp_path, name, order="stages")


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_task_without_a_watermark_is_named(tmp_path: Path, is_whole: bool) -> None:
    sales = [one for one in shops.sales(300) if is_whole or one.key == b"shop-1"]
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        service = Service(shops.app, log)  # nobody falls idle: its clock stands still
        log.append_all(sales)
        service.settle()
        service.worker.leave()
    follower = counting("follower", "totals", shops.Total, key="shop", watermark="upstream")
    report, _ = done(tmp_path, follower, order="stages")
    said = [one for one in report.notes if "had no watermark" in one]
    if is_whole:
        assert said == []
    else:
        (one,) = said
        assert one.startswith(
            f"totals: shops-{1 - partition_of(b'shop-1', 2)} had no watermark at the end of this history"
        )
