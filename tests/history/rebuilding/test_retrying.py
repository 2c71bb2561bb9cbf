"""What failed when it ran first is run again in its place, and each event takes effect once, however often it was redriven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tailrace.core.engine.replay import Replay
from tailrace.core.engine.tape import TapeRecord
from tailrace.core.errors import HandlerError, ReplayDivergedError
from tailrace.history import driving
from tailrace.history.comparing.states import KeyOfActor, Step
from tailrace.history.rebuilding.determinism import rebuild_twice
from tailrace.history.rebuilding.driver import settled_job
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.units import run_unit
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state.snapshots.arrow import parquet
from tests.history.rebuilding import lived, orders
from tests.history.rebuilding.lived import done, live, rebuilt
from tests.history.rebuilding.ordering import ALL, ORDERS, RIGHT, World, has_header, lived_through, of
from tests.history.rebuilding.orders import Account, Order


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.one_seed_in(50)  # one takes 0.9 s
def test_what_failed_is_run_in_its_place_and_its_redriven_record_is_passed_over(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held against a plain reading of the whole history."""
    for seed in seeds:
        world = lived_through(World(tmp_path / str(seed), monkeypatch), Random(seed))
        first, again = world.books()
        assert world.of_service() == first, seed
        for split in (1, 3):
            usual, snapshot = done(world.folder, ORDERS, split=split)
            assert rebuilt(snapshot) == live(world.folder, world.plan), seed
            assert usual.notes == []
        report, found = world.rebuilt(retry_failed=True)
        assert found == again, seed
        letters = world.letters()
        failed = sum(one.topic is not None and not has_header(one.record) for one in letters)
        timers = sum(one.topic is None for one in letters)  # which an order run again may have moved
        assert 0 < failed <= report.retried <= failed + timers, seed
        assert report.passed_over == sum(map(has_header, world.read())) > 0
        assert (report.failed_again, report.failed_here, report.left_to_redriven) == (0, 0, 0)


@pytest.mark.parametrize("retry_failed", [False, True])
def test_in_canonical_order_each_event_takes_effect_once_too(world: World, retry_failed: bool) -> None:
    """There every record is run in its place in any case: with the redriven ones it would take effect twice."""
    lived_through(world, Random(7))
    wanted: dict[str, Account] = {}
    for number in range(2):
        past = [one for read, _ in world.runs for one in read[number]]
        wanted |= orders.kept_books([(past, RIGHT)], ending=True)[1].accounts
    report, found = world.rebuilt(order="canonical", retry_failed=retry_failed)
    assert found == wanted
    assert report.passed_over == sum(map(has_header, world.read())) > 0
    assert report.retried >= sum(not has_header(one.record) for one in world.letters() if one.topic) > 0
    split, same = world.rebuilt(order="canonical", retry_failed=retry_failed, split=3)
    assert same == found
    assert any("the end of input goes through a partition in one piece" in note for note in split.notes)
    for name in ("retried", "failed_again", "passed_over", "left_to_redriven"):
        assert getattr(split, name) == getattr(report, name), name


def test_the_report_says_what_was_run_again_and_that_the_state_is_another(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 5), Order("c", 1_000, 4))
    world.live(ALL)
    world.code(RIGHT)
    report, snapshot = done(world.folder, ORDERS, retry_failed=True, split=2)
    assert of(snapshot) == world.books()[1]
    assert (report.retried, report.other_rows) == (1, 1)
    other = (
        "1 row is not what the service has stored (Customer 'a'): what had failed when it ran first was run again. A service "
        "begins with this snapshot with --replace-state, or beside under another name (--as)"
    )
    assert report.notes == [
        "it was not split: a rebuild that runs again what had failed is done in one piece for each partition",
        f"partition {orders.place_of('a')}: {other}",
        "what had failed when it ran first was run again in its place: 1 record or timer",
        "so state and outputs are not the service's; events, timers, outputs and failures are counted as its tape has them",
    ]
    assert snapshot.manifest.notes == tuple(report.notes)
    text = "\n".join(report.lines())
    assert ": 1 differs" in text, text


def test_where_nothing_had_failed_the_state_is_the_service_s_own(world: World) -> None:
    world.order(Order("a", 1_000, 1))
    world.live(RIGHT)
    report, snapshot = done(world.folder, ORDERS, retry_failed=True)
    assert rebuilt(snapshot) == live(world.folder, world.plan)
    assert report.notes == ["nothing that had failed when it ran first was run again"]
    assert report.other_rows == 0 < report.same_rows


def test_what_still_fails_stops_the_rebuild_which_names_it_or_goes_to_the_dead_letters(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 14), Order("a", 1_020, 13), Order("a", 1_030, 1))
    world.live(ALL | {"always"})
    world.code(frozenset({"always"}))
    with pytest.raises(HandlerError, match=r"14 brings bad luck.*topic 'orders', partition ., offset 1"):
        world.rebuilt(retry_failed=True)
    report, found = world.rebuilt(retry_failed=True, on_error="dead-letter")
    assert found["a"].cents == 13 + 13 + 1
    assert (report.retried, report.failed_again, report.failed_here) == (3, 1, 0)
    assert any("3 records and timers; 1 failed again" in note for note in report.notes)
    assert any(line.startswith("failed again: ") and "14 brings" in line for line in report.lines())


def test_the_traceback_of_what_fails_again_begins_with_the_handler(world: World, tmp_path: Path) -> None:
    world.order(Order("a", 1_000, 13))
    world.live(ALL | {"always"})
    report, _ = world.rebuilt(
        retry_failed=True, on_error="dead-letter", outputs=f"parquet:{tmp_path / 'out'}"
    )
    files = (tmp_path / "out" / "orders" / report.snapshot).glob("*.parquet")
    rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
    (letter,) = [one for one in rows if one["topic"] == "orders.dead-letters"]
    (traced,) = [one["value"] for one in letter["headers"] if one["key"] == "tailrace-traceback"]
    assert b"brings bad luck" in traced
    assert b"retrying.py" not in traced


def test_the_redriven_record_of_what_fails_again_is_run_as_it_was(world: World) -> None:
    world.order(Order("a", 1_000, 14), Order("a", 1_010, 13))
    world.live(ALL | {"always"})
    world.redrive()
    world.live(RIGHT)
    assert world.of_service()["a"].cents == 27
    world.code(
        ALL | {"always"}
    )  # the code of then, once more: the originals fail, and so does what was redriven
    report, found = world.rebuilt(retry_failed=True, on_error="dead-letter")
    assert found == {}
    assert (report.failed_again, report.failed_here, report.passed_over) == (2, 2, 0)
    world.code(frozenset({"always"}))
    report, found = world.rebuilt(retry_failed=True, on_error="dead-letter")
    assert found["a"].cents == 13
    assert (report.failed_again, report.failed_here, report.passed_over) == (1, 1, 1)


def test_outputs_are_numbered_once_though_there_are_others_than_the_service_s(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived_through(world, Random(2))
    _, again = world.books()
    to = world.folder / "out"
    report, _ = interrupted_at_every_commit(world, monkeypatch, retry_failed=True, outputs=f"parquet:{to}")
    written = 0
    for file in sorted((to / "orders" / report.snapshot).glob("*.parquet")):
        found = parquet.read_table(file).to_pylist()
        numbers = [one["number"] for one in found]
        assert numbers == list(range(len(numbers)))
        for one in found:
            origin = {header["key"]: header["value"] for header in one["headers"]}["tailrace-origin"]
            assert int(origin.rpartition(b"/")[2]) == one["number"]
        totals = [msgspec.json.decode(one["value"]) for one in found if one["topic"] == "totals"]
        assert {one["customer"]: one["cents"] for one in totals} == {
            customer: account.cents
            for customer, account in again.items()
            if orders.place_of(customer) == found[0]["partition"]
        }
        assert not any(one["topic"] == "orders.dead-letters" for one in found)
        written += len(found)
    assert written == report.written > 0


def test_some_keys_are_retried_as_they_are_among_all(world: World) -> None:
    lived_through(world, Random(3))
    whole, found = world.rebuilt(retry_failed=True)
    some, kept = world.rebuilt(retry_failed=True, keys=("a", "b"))
    assert kept == {key: found[key] for key in "ab" if key in found}
    assert 0 < some.retried < whole.retried
    assert 0 < some.passed_over < whole.passed_over


@pytest.mark.parametrize("store", ["rocks", "memory"])
def test_who_goes_on_with_it_knows_what_was_handled_before(
    world: World, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """It is interrupted at every commit, between what failed and its redriven record, too."""
    lived_through(world, Random(5))
    whole, found = world.rebuilt(retry_failed=True)
    report, same = interrupted_at_every_commit(world, monkeypatch, retry_failed=True, store=store)
    assert same == found
    for name in ("retried", "passed_over", "failed_again", "left_to_redriven"):
        assert getattr(report, name) == getattr(whole, name), name


def test_who_goes_on_knows_what_has_failed_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.order(Order("a", 1_000, 14), Order("b", 1_000, 14))
    world.live(RIGHT)
    world.order(Order("a", 1_200, 14), Order("b", 1_200, 14))
    world.live(RIGHT)
    world.code(frozenset({"always"}))
    report, _ = interrupted_at_every_commit(world, monkeypatch, on_error="dead-letter")
    assert (report.failed_here, len(report.failed)) == (4, 4)


def interrupted_at_every_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[RebuildReport, dict[str, Account]]:
    """A rebuild that is interrupted before each commit of each task, and gone on with."""
    monkeypatch.setattr(driving, "COMMIT_EVERY_S", -1.0)
    take = Replay.take
    seen: set[tuple[int, int]] = set()

    def interrupted(self: Replay, record: TapeRecord) -> bool:
        place = self.task.partition, record.number
        if place not in seen:
            seen.add(place)
            raise InterruptedError
        return take(self, record)

    monkeypatch.setattr(Replay, "take", interrupted)
    while True:
        try:
            found = world.rebuilt(**options)
            break
        except InterruptedError:
            continue
    assert len(seen) >= 4
    return found


def test_run_twice_both_runs_retry(world: World) -> None:
    lived_through(world, Random(4))
    asked = lived.request(world.folder, ORDERS, retry_failed=True)
    found = rebuild_twice(asked, lambda seed: LocalEngine(2, seed))
    assert not found.differs
    assert found.report is not None
    assert found.report.retried > 0


def test_a_trace_of_what_differs_shows_what_was_run_again(world: World) -> None:
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 1))
    world.live(ALL)
    world.code(RIGHT)
    job = settled_job(lived.request(world.folder, ORDERS, retry_failed=True))
    work = WorkFolder(Path(job.work))
    with work.held():
        work.make()
        unit = Unit(job=job, kind="trace", partition=orders.place_of("a"), keys=(b"a",))
        made = run_unit(unit).made["tracks"]
    ((place, steps),) = msgspec.msgpack.decode(made, type=list[tuple[KeyOfActor, list[Step]]])
    assert place == ("Customer", b"a")
    assert ["orders @0" in str(steps[0]), "orders @1" in str(steps[1])] == [True, True]


def test_the_watermark_is_that_of_the_first_run_where_events_state_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed was not asked, so it is not asked now: else timers would fire earlier than they did."""
    world = World(tmp_path, monkeypatch, "tests.history.rebuilding.orders:punctuating")
    world.order(Order("a", 1_000, 1), Order("a", 1_100, 13, mark=0), Order("a", 1_020, 2, mark=0))
    world.live(ALL)
    world.code(RIGHT)
    _, found = world.rebuilt(retry_failed=True)
    # Had the second order said that the watermark is at 1,100, the third would be late, and dropped.
    assert found["a"].cents == 16
    assert found["a"].late == 0


def test_messages_of_what_is_run_again_are_delivered_in_canonical_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, "tests.history.rebuilding.orders:telling")
    world.order(Order("a", 1_000, 13), Order("a", 1_010, 13), Order("a", 1_020, 1))
    world.live(ALL)
    (first, _) = [one.id for one in world.letters()]
    world.redrive(lambda one: one.id == first)
    world.live(RIGHT)
    report, _ = world.rebuilt(retry_failed=True)
    assert report.order == "canonical"
    assert (report.passed_over, report.undelivered) == (1, 0)
    assert any("is not what is recorded: in canonical order" in note for note in report.notes)
    with pytest.raises(ReplayDivergedError, match=r"sends to 'orders.inbox'"):
        world.rebuilt(retry_failed=True, order="tape")


def test_what_could_not_be_decoded_and_can_be_now_is_run_in_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = orders.record(Order("a", 1_000, 7))._replace(value=b'{"customer":"a","at":"1000","cents":7}')
    world.order(odd, Order("a", 1_010, 1))
    world.live(RIGHT)
    assert [one.reason for one in world.letters()] == ["wrong-type"]
    world.redrive()
    lax = msgspec.json.Decoder(Order, strict=False)
    corrected = SimpleNamespace(plan=lambda: laxer(world.plan, lax))
    monkeypatch.setattr("tailrace.history.rebuilding.units.find_app", lambda _: corrected)
    world.live(RIGHT)  # it fails again: the service has not been corrected
    report, found = world.rebuilt(retry_failed=True)
    assert found["a"].cents == 8
    assert (report.retried, report.passed_over) == (1, 1)


def laxer(plan: Any, decoder: Any) -> Any:
    """The plan of an app that decodes more than it did."""
    inputs = tuple(
        replace(one, decode=decoder.decode) if one.name == "orders" else one for one in plan.inputs
    )
    return replace(plan, inputs=inputs)
