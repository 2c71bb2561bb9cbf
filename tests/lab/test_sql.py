"""Queries compared with plain Python over all events, through the command, on the log, a snapshot and as of a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.core.errors import OffsetGoneError, OptionError
from tailrace.lab import export
from tailrace.lab.sql import answered
from tailrace.log.archive import Archive, archive_log
from tailrace.log.opening import Past, open_past
from tailrace.testing import Harness
from tests.lab import selling, yard
from tests.spark import travel

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def life() -> Iterator[tuple[Harness, list[yard.Move]]]:
    h, events = yard.lived(seed=3)
    with h:
        yield h, events


def asked(h: Harness, query: str) -> Rows:
    with answered(h.plan, h.log, h.log, query) as (_, rows, notes):
        assert notes == []
        return list(rows)


def by_yard(events: list[yard.Move]) -> Rows:
    return sorted(Counter(one.yard for one in events).items())


def test_states_are_asked(life: tuple[Harness, list[yard.Move]]) -> None:
    h, events = life
    query = "select key_1, sum(count) from Slot group by key_1 order by key_1"
    assert asked(h, query) == asked(h, query.replace("Slot", 'states."Slot"')) == by_yard(events)


def test_odd_values_are_asked_for(life: tuple[Harness, list[yard.Move]]) -> None:
    h, events = life
    query = 'select key_1, key_2, isnan("ratio-of"), "ratio-of" is null, epoch_us("last") from Slot'
    assert sorted(asked(h, query)) == sorted(
        (
            *key,
            None if one["ratio-of"] is None else one["ratio-of"] == "nan",
            one["ratio-of"] is None,
            (one["last"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
        )
        for key, one in yard.expected(events).items()
    )


def test_a_state_is_joined_with_a_map_and_a_topic(life: tuple[Harness, list[yard.Move]]) -> None:
    h, events = life
    query = """
        select sum(value) = (select count(*) from topics.moves), (select count(*) from moved)
        from Slot_by join Slot using (key_1, key_2) where entry_2 >= 0
    """
    assert asked(h, query) == [(True, len(events))]


def test_only_what_a_query_names_is_read(
    life: tuple[Harness, list[yard.Move]], monkeypatch: pytest.MonkeyPatch
) -> None:
    h, _ = life
    monkeypatch.setattr(export, "export_state", lambda *_: pytest.fail("a state is read"))
    assert asked(h, "select 1 + 1") == [(2,)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", "fails: .*syntax error"),
        ("drop table Slot", "not one SELECT"),
        ("select 1; select 2", "not one SELECT"),
        ("select nothing from Slot", "fails: .*nothing"),
        (
            "select * from Slots",
            "names 'Slots', which is no table here. Did you mean 'Slot'.{1,2}The query .show tables. names all",
        ),
        ("select * from Slot_bi", "Did you mean 'Slot_by'"),
        ("select * from states.move", "names 'move', which .* Did you mean 'moves'"),
        ("select * from pg_taabl", "names 'pg_taabl', which is no table here. The query"),
        ("select 1 / count(*) from Slot where error('x') = 1", "fails: .*x. Correct it.$"),
    ],
)
def test_a_query_that_is_wrong_is_said_to_be(
    life: tuple[Harness, list[yard.Move]], query: str, said: str
) -> None:
    with pytest.raises(OptionError, match=f"(?s){said}"):
        asked(life[0], query)


def test_names_that_differ_by_case_only_are_refused() -> None:
    app = tr.App("cases")
    moves = app.topic("moves", selling.Sale, key="shop", event_time="at")

    @app.actor
    class Slot(tr.Actor):
        n: int = 0
        N: int = 0

        @tr.process(moves)
        def moved(self, event: selling.Sale, ctx: tr.Context[str]) -> None:
            self.n += 1

    class Other(tr.Actor):
        m: int = 0

        @tr.process(moves)
        def moved(self, event: selling.Sale, ctx: tr.Context[str]) -> None:
            self.m += 100

    app.actor(name="slot")(Other)
    app.actor(name="Moves")(type("Third", (Other,), {}))
    with Harness(app) as h:
        h.send(moves, selling.Sale("a", 1, 1))
        h.commit()
        for query, said in (
            ('select "N" from Slot', "columns of Slot 'N' and 'n' differ"),
            ("select m from slot", None),
            ("select m from slot join Slot using (key)", "tables 'Slot' and 'slot' differ"),
            ("select m from states.slot join states.Slot using (key)", "tables 'Slot' and 'slot' differ"),
            ("select m from Moves join moves on true", "tables 'Moves' and 'moves' differ"),
            ("select m from states.Moves join topics.moves on true", None),
        ):
            with nullcontext() if said is None else pytest.raises(OptionError, match=said):
                assert asked(h, query) == [(100,)]


def test_the_tables_are_listed(life: tuple[Harness, list[yard.Move]]) -> None:
    found = asked(life[0], "SHOW tables;")
    assert {("states", "Slot"), ("states", "Slot_by"), ("topics", "moves")} < set(found)
    for schema, name in found:
        if schema == "topics":
            assert asked(life[0], f'select count(*) >= 0 from {schema}."{name}"') == [(True,)]


def test_a_topic_is_read_from_an_archive_and_its_log_and_a_gap_is_named(tmp_path: Path) -> None:
    log = travel.filled(tmp_path / "log", 60)
    archive = str(tmp_path / "archive")
    archive_log(log, Archive.at(archive), records_per_chunk=20)
    writer = log.writer("late")
    writer.append([travel.output(travel.trips, travel.trip(60 + n), 0) for n in range(40)])
    writer.commit()
    plan, query = travel.app.plan(), "select sum(miles) from trips"

    def total() -> Any:
        with (
            closing(open_past(Past(log=str(tmp_path / "log"), archive=archive))) as history,
            answered(plan, log, history, query) as (_, rows, notes),
        ):
            assert notes == []
            return next(rows)

    archived = {number: min(3, log.end_offset("trips", number)) for number in range(4)}
    for number, offset in archived.items():
        log.delete_before("trips", number, offset)
    assert total() == (sum(range(100)),)
    log.delete_before("trips", 2, log.end_offset("trips", 2))
    with pytest.raises(OffsetGoneError, match=r"offsets 6 to 9 are neither .*'trips', partition 2"):
        total()
    log.close()
