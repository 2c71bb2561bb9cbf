"""The race detector on whole apps: what depends on the schedule is found and explained, and
nothing else is.
"""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import tailrace as tr
from tailrace.core.errors import EmittedTypeError, HandlerError, UsageError
from tailrace.testing import At, ExploreReport, Harness, ScheduleDependentError, System
from tailrace.testing.faults import CRASH, Item
from tests.cast.apps import CAST, case_of
from tests.testing.exploring import apps
from tests.testing.exploring.apps import Said, Tick
from tests.testing.fares import Drivers, Regions, some_fares


def explore(app: tr.App, history: Iterable[Any], **options: Any) -> ExploreReport:
    """What an exploration reports that finds nothing."""
    with Harness(app) as h:
        return h.explore(history, **options)


def found(app: tr.App, history: Iterable[Any], schedules: int = 20, **options: Any) -> ExploreReport:
    """What an exploration finds that has to find something."""
    with pytest.raises(ScheduleDependentError) as caught:
        explore(app, history, schedules=schedules, **options)
    return caught.value.report


def late_ticks(app: tr.App) -> list[Any]:
    """Events of which those of the first input come out of order by more than it declares."""
    items = list(apps.ticks(app))
    ones = [item for item in items if item[0].name == "ones"]
    for start in range(0, len(ones), 8):
        some = ones[start : start + 8]
        random.Random(start).shuffle(some)
        ones[start : start + 8] = some
    return ones + [item for item in items if item[0].name == "twos"]


# --- what does not depend on the schedule


@pytest.mark.one_seed_in(50)
@pytest.mark.parametrize("name", [name for name in CAST if name != "broadcast"])
def test_no_app_of_the_cast_depends_on_the_schedule(name: str, seeds: range) -> None:
    """What is left of records that cannot be decoded or handled, too. An output topic has no common order of several keys."""
    for seed in seeds:
        case = case_of(name, seed)
        app = case.make(case.partitions)
        with Harness(app) as h:
            h.log.append_all(case.inputs)
            assert h.explore(schedules=10, unordered=[*app.topics.values()], idleness=False).equal


def test_a_rekeyed_join_that_follows_its_writers_does_not_depend_on_the_schedule() -> None:
    app = apps.shop()
    report = explore(app, apps.sales(app), schedules=60)
    assert str(report) == "60 schedules of shop, 7,200 events: all 180 keys equal"
    with Harness(app) as h:
        for topic, event in apps.sales(app):
            h.send(topic, event)
        h.end_of_input()
        assert {one.what for one in h.emitted(app.topics["done"])} == {"paid"}


def test_what_commutes_does_not_depend_on_idleness_and_one_input_is_never_late_by_it() -> None:
    for app, inputs in ((apps.counts(), {"ones", "twos"}), (apps.windows(idle_after="1s"), {"ones"})):
        history = [item for item in apps.ticks(app) if item[0].name in inputs]
        assert explore(app, history, schedules=100).equal


def test_an_input_that_is_silent_beyond_its_idle_after_is_an_error_of_an_app_that_does_not_expect_it() -> (
    None
):
    app = apps.windows()
    report = found(app, apps.ticks(app), schedules=60)
    (one,) = report.errors
    assert (
        "inputs were silent for longer than their idle_after in that schedule: declare with late="
        in one.cause
    )
    assert "(late there: the watermark was" in one.cause
    assert "inputs are silent for longer than their idle_after" in one.special


@pytest.mark.parametrize("late", ["drop", "route"])
def test_it_is_declared_by_what_happens_to_its_late_events(late: str) -> None:
    app = apps.windows(late=late, idle_after="1s")
    report = explore(app, apps.ticks(app), schedules=60)
    assert report.declared
    assert not report.errors
    assert all(one.declared.startswith("late events: ") for one in report.declared)


@pytest.mark.one_seed_in(10)  # one takes 0.1 s
def test_no_seed_finds_a_difference_where_there_is_none(seeds: range) -> None:
    app = apps.windows(out_of_order="5s")
    history = list(apps.ticks(app, 15))
    for seed in seeds:
        assert explore(app, history, schedules=4, seed=seed, idleness=False).equal


# --- what does


def test_a_rekeyed_topic_that_goes_by_its_own_events_is_found_and_its_timer_is_named() -> None:
    app = apps.shop(by_events=True)
    report = found(app, apps.sales(app), schedules=10)
    (one,) = report.errors
    assert one.timer == "unpaid"
    assert "the timer 'unpaid' of 1970-01-01T00:" in one.cause
    assert "before the event of 'paid' Payment(user=" in one.cause
    assert "(late there: the watermark was 1970-01-01T00:" in one.cause
    assert one.differences[0].where.startswith("outputs to 'done', key 'o")
    assert {change.was for change in one.differences[0].changes} <= {
        f"Outcome(order={one.differences[0].where.split()[-1]}, what={what})"
        for what in ("'paid'", "'unpaid'")
    }


def test_the_last_of_two_inputs_to_write_a_field_is_found_with_the_two_writes() -> None:
    app = apps.last_write_wins()
    (one,) = found(app, apps.ticks(app)).errors
    assert one.keys == 3
    change = one.differences[0].changes[0]
    assert change.label == "value"
    assert f"n={change.was})" in one.cause
    assert f"n={change.is_})" in one.cause
    assert "was handled before" in one.cause


def test_reference_data_that_is_read_too_late_is_found() -> None:
    app = apps.reference_data()
    report = found(app, apps.ticks(app))
    (one,) = report.errors
    assert repr(Said("k0", "sold at None")) in str(report)
    assert one.handlers == ("Item.sell", "Item.priced")
    assert any("sold at None" in change.is_ for change in one.differences[0].changes)


def test_a_timer_at_an_events_own_time_is_found_to_race_with_later_events() -> None:
    app = apps.timer_at_once()
    (one,) = found(app, apps.ticks(app)).errors
    assert one.timer is not None
    assert one.timer.startswith("tell:")
    assert " fired before " in one.cause


def test_a_handler_that_uses_a_global_is_found_as_a_schedule_does_not_even_repeat_itself() -> None:
    app = apps.counts(outside=True)
    (one,) = found(app, apps.ticks(app)).errors
    assert "does not even repeat itself" in one.cause
    assert "a handler uses more than its event, its state and its context" in one.cause
    assert one.differences
    assert "in one run" in str(found(app, apps.ticks(app)))


def test_a_late_event_that_is_handled_like_others_is_an_error_that_names_the_watermark() -> None:
    app = apps.windows()
    report = found(app, late_ticks(app))
    assert any("(late there: the watermark was" in one.cause for one in report.errors)


def test_a_time_to_live_that_a_timer_handler_begins_does_not_depend_on_the_schedule() -> None:
    app = apps.remembers(references=False)
    assert explore(app, apps.ticks(app), schedules=60).equal


def test_a_time_to_live_that_reference_data_begins_is_found_to_count_from_the_watermark() -> None:
    app = apps.remembers(references=True)
    (one,) = found(app, apps.ticks(app)).errors
    assert "has another time to live, which counts from the watermark" in one.cause


def test_a_difference_is_followed_back_to_the_actor_where_it_begins() -> None:
    app = apps.last_write_is_passed_on()
    report = found(app, apps.ticks(app))
    assert {one.cause.split()[0] for one in report.errors} == {"Last"}
    assert any(
        where.startswith("Copy ")
        for one in report.errors
        for where in (each.where for each in one.differences)
    )


def test_a_dead_letter_that_only_some_schedules_have_is_found() -> None:
    app = apps.reference_data("dead-letter", strict=True)
    report = found(app, apps.ticks(app))
    wheres = [each.where for one in report.errors for each in one.differences]
    assert any(where.startswith("dead letters of 'twos', key 'k") for where in wheres)
    assert any(one.cause.startswith("Item 'k") for one in report.errors)


def test_outputs_in_another_order_are_found_and_can_be_said_not_to_matter() -> None:
    app = apps.passes_on()
    (one,) = found(app, apps.ticks(app)).errors
    assert one.differences[0].only_order
    assert "(the same, in another order)" in str(found(app, apps.ticks(app)))
    assert explore(app, apps.ticks(app), schedules=20, unordered=[app.topics["said"]]).equal


# --- what is declared


@pytest.mark.parametrize(
    ("make", "late", "said"),
    [
        (lambda: apps.windows(late="drop"), True, "late events: '(ones|twos)' has late=\"drop\""),
        (lambda: apps.windows(late="route"), True, "late events: '(ones|twos)' has late='too-late'"),
        (apps.asks_whether_it_is_late, True, "late events: Asking.one asks ctx.is_late"),
        (lambda: apps.notes("now"), False, "processing time: Noting.note asks ctx.now"),
        (apps.waits_by_the_clock, False, "processing time: "),
        (lambda: apps.last_write_wins(tr.ARRIVAL_TIME), False, "arrival: 'ones' has event_time=ARRIVAL_TIME"),
        (lambda: apps.windows(idle_after="1s", late="handle"), False, "idleness: "),
        (lambda: apps.notes("random"), False, "randomness: Noting.sample asks ctx.random"),
    ],
    ids=["drop", "route", "is_late", "now", "processing timer", "arrival", "idle", "random"],
)
def test_what_is_declared_to_follow_the_order_of_arrival_is_told_and_is_no_error(
    make: Callable[[], tr.App], late: bool, said: str
) -> None:
    app = make()
    history = late_ticks(app) if late else list(apps.ticks(app))
    report = explore(app, history, schedules=60)
    assert not report.errors
    assert report.declared
    assert all(re.match(said, one.declared) for one in report.declared)
    assert re.search(f"declared: {said}", str(report))
    assert not report.equal
    with pytest.raises(ScheduleDependentError):
        explore(app, history, schedule=min(report.differing), strict=True)


# --- how it is asked for


def test_a_seed_and_a_schedule_give_the_same_again() -> None:
    app = apps.last_write_wins()
    first, second = (found(app, apps.ticks(app), seed=3) for _ in range(2))
    assert first.lines() == second.lines()
    number = first.errors[0].schedule
    alone = found(app, apps.ticks(app), schedule=number, seed=3)
    assert alone.schedules == 2
    assert alone.errors[0].cause == first.errors[0].cause
    assert found(app, apps.ticks(app), seed=4).lines() != first.lines()


def test_a_harness_explores_what_was_sent_to_it_and_is_not_changed_by_that() -> None:
    app = apps.last_write_wins()
    with Harness(app) as h:
        for topic, event in apps.ticks(app):
            h.send(topic, event)
        with pytest.raises(ScheduleDependentError) as caught:
            h.explore(schedules=20)
        assert h.replay().records == 80
    assert caught.value.report.lines() == found(app, apps.ticks(app)).lines()


def test_each_app_of_a_system_is_explored_over_what_has_come_to_it() -> None:
    drivers, regions = Drivers(), Regions()
    with System(drivers.app, regions.app) as s:
        with pytest.raises(UsageError, match="there is no event for any input"):
            s.explore()
        s.send(drivers.fares, *some_fares(random.Random(1), 20))
        s.end_of_input()
        reports = s.explore(schedules=10, unordered=[drivers.hours])
        assert all(one.equal for one in reports.values())
        assert reports[drivers.app.name].records == 20
        assert reports[regions.app.name].records == len(s.emitted(drivers.hours))


def test_records_bear_the_timestamps_that_a_history_gives_them() -> None:
    app = apps.windows(tr.RECORD_TIME)
    topics = [app.topics[name] for name in ("ones", "twos")]
    history: list[Item] = [At(n * 1_000, topics[n % 2], Tick("k", 0, n)) for n in range(60)]
    assert explore(app, history, schedules=20, idleness=False).equal
    with Harness(app) as h:
        h.run(history)
        h.end_of_input()
        assert {event.at for event in h.emitted(app.topics["sums"])} == {
            at * 10_000 + 9_999 for at in range(6)
        }


def test_a_handler_that_stops_the_service_names_the_schedule() -> None:
    app = apps.reference_data(strict=True)
    with pytest.raises(HandlerError) as caught:
        explore(app, apps.ticks(app), schedules=20)
    assert any(note.startswith("in schedule ") for note in caught.value.__notes__)


def test_an_event_that_its_readers_cannot_decode_is_found() -> None:
    app = tr.App("wrong", partitions=2)
    ones = app.topic("ones", Tick, key="key", event_time="at")
    said = app.topic("said", Tick, key="key")

    @app.process(ones)
    def tell(event: Tick, ctx: tr.Context[str]) -> None:
        ctx.emit(said, Tick(event.key, "7", 1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # on purpose

    with pytest.raises(EmittedTypeError, match="its readers could not decode it"):
        explore(app, [(ones, Tick("a", 1, 1))], schedules=2)


@pytest.mark.parametrize(
    ("history", "options", "said"),
    [
        ([], {}, "there is no event for any input"),
        ([CRASH], {}, "CRASH is not an event"),
        (None, {"schedules": 0}, "there is no such schedule"),
        (None, {"schedule": -1}, "there is no such schedule"),
    ],
)
def test_what_makes_no_sense_is_refused(
    history: list[Any] | None, options: dict[str, Any], said: str
) -> None:
    app = apps.counts()
    with pytest.raises(UsageError, match=said):
        explore(app, apps.ticks(app) if history is None else history, **options)


def test_the_error_can_be_sent_to_another_process_and_is_an_assertion() -> None:
    app = apps.last_write_wins()
    with pytest.raises(AssertionError, match="depends on the schedule, 1: Last 'k") as caught:
        explore(app, apps.ticks(app), schedules=10)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert "To repeat one: schedule=" in str(again)
