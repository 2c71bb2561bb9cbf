"""Each way an output can come to be: whether it is later than what its task has published, line by line of the table.

The table stands in docs/concepts.md, "What an output's time is, and what was published".
"""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.history.dead_letters.redriving import close_letters
from tailrace.runtime.progress import last_phase
from tests.runtime.followed import Followed, Step, echoing, ringing, steps

KEYS = ("a", "b", "c")


class Told(msgspec.Struct, frozen=True):
    at: int


# --- records -------------------------------------------------------------------------------------------------------


def test_what_a_record_in_time_brings_is_later_than_what_was_published() -> None:
    run = Followed(echoing())
    run.run_held(*steps(1_000, 1_000, 1_001, 1_700, 2_000))
    assert (len(run.stamps), run.published) == (5, 1_999)


def test_what_a_late_record_that_is_handled_brings_is_behind_and_its_handler_is_named() -> None:
    run = Followed(echoing())
    run.run(*steps(1_000, 2_000, 1_999))
    assert (run.behind, run.late) == ({("out", "echo"): 1}, 1)


def test_for_the_topic_that_late_records_are_routed_to_nothing_is_published() -> None:
    run = Followed(echoing(routed=True))
    run.run_held(*steps(1_000, 2_000, 1_500))
    assert [record.timestamp_ms for record in run.log.read("lates")] == [1_500]
    assert "lates" not in {topic for topic, _ in run.log.publications()}
    assert run.tasks[0].task.totals.late == 1


def test_a_late_record_routed_to_a_topic_that_handlers_emit_to_is_behind_and_counts_as_late() -> None:
    run = Followed(echoing(routed=True, both=True))
    run.run_held(*steps(1_000, 2_000, 1_500))
    assert [record.timestamp_ms for record in run.log.read("lates")] == [1_000, 2_000, 1_500]
    assert run.log.publications()["lates", "first-0"] == 1_999
    assert run.tasks[0].task.totals.late == 1


def test_what_reference_data_brings_may_be_behind_and_its_handler_is_named() -> None:
    app = tr.App("first", partitions=1)
    taken = app.topic("steps", Step, key="key", event_time="at")
    names = app.topic("names", Step, key="key", event_time="at", watermark=False)
    out = app.topic("out", Step, key="key")

    @app.process(taken, names, order="arrival")
    def echo(event: Step, ctx: tr.Context[str]) -> None:
        assert not ctx.is_late
        ctx.emit(out, event)

    run = Followed(app)
    run.run(*steps(1_000, 2_000))
    run.run(*steps(1_500), topic="names")
    assert (run.behind, run.late) == ({("out", "echo"): 1}, 1)


def test_what_a_redriven_record_brings_is_behind_and_its_handler_is_named() -> None:
    app = tr.App("first", partitions=1, on_error="dead-letter")
    taken = app.topic("steps", Step, key="key", event_time="at", late="drop")
    out = app.topic("out", Step, key="key")
    broken = True

    @app.process(taken)
    def echo(event: Step, ctx: tr.Context[str]) -> None:
        if broken and event.key == "bad":
            raise ValueError("not now")
        ctx.emit(out, event)

    run = Followed(app)
    run.run_held(Step("bad", 1_000), *steps(1_500, 2_000))
    broken = False
    assert close_letters(run.log, "first", "redriven", lambda _: True, now_ms=run.now).done
    run.run()
    assert run.stamps == [1_500, 2_000, 1_000]
    assert (run.behind, run.late) == ({("out", "echo"): 1}, 1)
    assert run.tasks[0].task.totals.late == 0


# --- timers --------------------------------------------------------------------------------------------------------


def test_what_an_event_time_timer_emits_is_later_than_what_was_published() -> None:
    run = Followed(ringing())
    run.run_held(*(Step(key, 1_000, 1_500) for key in KEYS), *(Step(key, 1_100, 1_400) for key in KEYS[:1]))
    run.run_held(*steps(1_600, 3_000))
    assert run.stamps == [1_400] * 3 + [1_500] * 6
    assert run.drained > 6
    assert run.published == 2_999


def test_what_a_timer_set_in_the_past_emits_is_behind_and_its_handler_is_named() -> None:
    run = Followed(ringing())
    run.run_held(*steps(1_000, 2_000))
    run.run(Step("a", 2_100, 1_200))
    assert (run.behind, run.late) == ({("out", "Bell.ring"): 3}, 3)
    run.run(*steps(2_200))
    assert run.late == 3
    assert run.published == 2_199


def test_what_a_timer_set_in_the_past_but_not_behind_emits_is_later_than_what_was_published() -> None:
    run = Followed(ringing())
    run.run_held(*steps(1_000, 2_000), Step("a", 3_000, 2_500))
    assert run.stamps == [2_500] * 3


def test_what_a_processing_time_timer_emits_is_right_behind_the_watermark() -> None:
    app = tr.App("first", partitions=1)
    taken = app.topic("steps", Step, key="key", event_time="at")
    names = app.topic("names", Step, key="key", event_time="at", watermark=False)
    out = app.topic("out", Step, key="key")

    @app.actor
    class Clock(tr.Actor, order="arrival"):
        @tr.process(taken, names)
        def wind(self, event: Step, ctx: tr.Context[str]) -> None:
            for number in range(3):
                ctx.set_processing_timer(ctx.now + 100, f"tick:{number}")

        @tr.on_processing_timer("tick")
        def tick(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Step(ctx.key, ctx.event_time))

    run = Followed(app)
    run.run_held(*steps(500), topic="names")
    run.now += 100
    run.run_held()
    assert run.stamps == [0] * 3  # there is no watermark yet
    run.run_held(*(Step(key, 1_000) for key in KEYS))
    run.now += 100
    run.run_held(*steps(1_001))
    assert set(run.stamps[3:]) == {1_000}
    run.now += 100
    run.run_held()
    assert set(run.stamps[12:]) == {1_001}
    assert run.drained


def test_an_expiry_emits_nothing_and_what_a_handler_emits_then_has_the_time_of_its_cause() -> None:
    app = tr.App("first", partitions=1)
    taken = app.topic("steps", Step, key="key", event_time="at")
    out = app.topic("out", Step, key="key")

    @app.actor
    class Memory(tr.Actor):
        seen: int = tr.field(default=0, ttl="100ms")

        @tr.process(taken)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            if not self.seen:
                ctx.emit(out, event)
            self.seen += 1

    run = Followed(app)
    run.run_held(*(Step(key, 1_000) for key in KEYS))
    run.run_held(*steps(1_200))  # it takes the watermark past all expiries, which fire one by one
    assert (run.stamps, run.published) == ([1_000] * 3 + [1_200], 1_199)
    assert run.drained
    run.run_held(*(Step(key, 1_201) for key in KEYS))
    assert run.stamps[4:] == [1_201] * 3


# --- messages ------------------------------------------------------------------------------------------------------


def sending(*, circle: bool) -> tr.App:
    """``Sender`` tells ``Other``, which emits; in a circle it tells itself, which emits."""
    app = tr.App("first", partitions=1)
    taken = app.topic("steps", Step, key="key", event_time="at")
    out = app.topic("out", Step, key="key")

    if circle:

        @app.actor
        class Self(tr.Actor):
            @tr.process(taken)
            def step(self, event: Step, ctx: tr.Context[str]) -> None:
                ctx.send(Self, ctx.key, Told(event.at))

            @tr.on_message
            def told(self, message: Told, ctx: tr.Context[str]) -> None:
                ctx.emit(out, Step(ctx.key, message.at))

        return app

    @app.actor
    class Other(tr.Actor):
        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Step(ctx.key, message.at))

    @app.actor
    class Sender(tr.Actor):
        @tr.process(taken)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            ctx.send(Other, ctx.key, Told(event.at))
            if event.other:
                ctx.set_timer(event.other, "tell")

        @tr.on_timer("tell")
        def report(self, ctx: tr.Context[str]) -> None:
            ctx.send(Other, ctx.key, Told(ctx.event_time))

    return app


def test_what_a_message_brings_along_an_edge_outside_of_circles_is_later_than_what_was_published() -> None:
    for most in (1, 10):
        run = Followed(sending(circle=False))
        run.run_held(*(Step(key, 1_000, 1_500) for key in KEYS), *steps(1_600, 2_000), most=most)
        run.run_held(*steps(2_100, 3_000), most=most)
        assert sorted(run.stamps) == [1_000] * 3 + [1_500] * 3 + [1_600, 2_000, 2_100, 3_000]
        assert run.published == 2_999
        assert run.drained


def test_what_a_message_sent_behind_brings_is_behind_and_its_receiver_is_named() -> None:
    run = Followed(sending(circle=False))
    run.run_held(*steps(1_000, 2_000))
    run.run(*steps(1_500))
    assert (run.behind, run.late) == ({("out", "Other.told"): 1}, 1)


def test_what_a_message_brings_within_a_circle_may_be_behind_and_its_receiver_is_named() -> None:
    app = sending(circle=True)
    assert app.plan().circles == (("Self",),)
    run = Followed(app)
    run.run(*steps(1_000, 2_000), most=10)  # the watermark has come to 1,999 when the messages are read
    assert (run.behind, run.late) == ({("out", "Self.told"): 1}, 1)


# --- starts --------------------------------------------------------------------------------------------------------


def test_what_is_left_of_a_drain_is_later_than_what_was_published_before_a_crash() -> None:
    run = Followed(ringing())
    run.run_held(*(Step(key, 1_000, 1_500) for key in KEYS))
    run.feed(*steps(2_000))
    for fired in range(1, 9):
        run.turn()
        assert len(run.stamps) == fired
        assert run.published == 1_499
        run.restart()
        assert run.tasks[0].task.draining
        run.check()
    run.run_held()
    assert (run.stamps, run.published) == ([1_500] * 9, 1_999)


def test_the_first_commit_after_a_restore_publishes_nothing_that_is_still_to_come() -> None:
    run = Followed(ringing())
    run.run_held(*(Step(key, 1_000, 1_500) for key in KEYS))
    for at in (1_200, 1_499, 1_500, 1_501):
        before = run.published
        run.restart()
        run.feed(*steps(at))
        run.turn()
        run.check()
        assert before is not None
        assert run.published == max(before, min(at - 1, 1_499))
    run.run_held()
    assert (run.stamps, run.published) == ([1_500] * 9, 1_500)


def test_what_is_emitted_behind_before_the_first_commit_after_a_restore_is_named_as_well() -> None:
    run = Followed(echoing())
    run.run_held(*steps(1_000, 2_000))
    run.restart()
    run.run(*steps(1_500))
    assert (run.behind, run.late) == ({("out", "echo"): 1}, 1)


def test_so_it_is_where_the_task_held_nobody_back_before_the_restore() -> None:
    run = Followed(echoing())
    run.run_held(*steps(1_000, 2_000))
    run.now += 60_000
    run.run_held()
    run.now += 60_000
    run.run_held()
    assert run.published is None
    run.restart()
    run.run(*steps(1_500))
    assert (run.behind, run.late) == ({("out", "echo"): 1}, 1)


def test_a_task_that_has_never_committed_has_published_nothing_and_is_waited_for() -> None:
    run = Followed(echoing(partitions=2), tasks=[0])
    run.run_held(*steps(5_000, 6_000, key="a"))
    assert all(one.task.watermark == NO_WATERMARK for one in run.readers)
    run.feed(*steps(1_000, 2_000, key="d"))
    run.start(1)
    run.run_held()
    assert sorted(run.stamps) == [1_000, 2_000, 5_000, 6_000]
    assert all(one.task.watermark == 1_999 for one in run.readers)


# --- other ways ----------------------------------------------------------------------------------------------------


def repartitioning(seen: list[tuple[int, bool]]) -> tr.App:
    app = tr.App("first", partitions=2)
    taken = app.topic("steps", Step, key="key", event_time="at", out_of_order=100, repartition=True)
    out = app.topic("out", Step, key="key")

    @app.process(taken)
    def echo(event: Step, ctx: tr.Context[str]) -> None:
        seen.append((event.at, ctx.is_late))
        ctx.emit(out, event)

    return app


def test_what_is_forwarded_in_time_is_later_than_what_was_published_for_the_hidden_topic() -> None:
    seen: list[tuple[int, bool]] = []
    run = Followed(repartitioning(seen))
    for partition in range(2):  # where they do not belong by their keys, in part
        run.feed(*(Step(key, at) for at in (1_000, 1_500, 1_450, 2_000) for key in "ad"), partition=partition)
    run.run_held()
    assert len(seen) == 16
    assert not any(late for _, late in seen)
    assert {mark for (topic, _), mark in run.log.publications().items() if topic == "out"} == {1_899}


def test_what_is_forwarded_late_counts_as_late_for_its_takers_who_are_named_for_what_they_emit() -> None:
    seen: list[tuple[int, bool]] = []
    run = Followed(repartitioning(seen))
    for partition in range(2):
        run.feed(*(Step(key, at) for at in (1_000, 2_000) for key in "ad"), partition=partition)
    run.run_held()
    run.feed(Step("a", 1_500), partition=1)  # it belongs to partition 0
    run.run()
    assert seen[-1] == (1_500, True)
    assert [one.task.totals.late for one in run.tasks] == [1, 0]
    assert (run.behind, run.late) == ({("out", "echo"): 1}, 1)
    assert not run.tasks[1].promises.behind  # the forward itself is not named


def test_an_output_with_a_time_of_its_own_is_judged_by_it() -> None:
    app = tr.App("first", partitions=1)
    taken = app.topic("steps", Step, key="key", event_time="at")
    out = app.topic("out", Step, key="key")
    begun = app.topic("begun", Step, key="key", event_time="other")

    @app.process(taken)
    def at(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event, at=event.other)

    @app.process(taken)
    def begin(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(begun, event, at=event.at)

    run = Followed(app)
    run.run_held(Step("a", 1_000, 1_000), Step("a", 2_000, 2_500), Step("a", 2_100, 2_000))
    run.run(Step("a", 3_000, 2_099), Step("a", 3_100, 2_999), Step("a", 3_200, 3_100))
    assert run.stamps == [1_000, 2_500, 2_000, 2_099, 2_999, 3_100]
    assert (run.behind, run.late) == ({("out", "at"): 2, ("begun", "begin"): 2}, 2)


def handing_on() -> tuple[tr.App, tr.Topic[Step, str], tr.Stream[Step, str]]:
    """An actor that hands on a step when its timer fires, by a stream."""
    app = tr.App("first", partitions=1)
    taken = app.topic("steps", Step, key="key", event_time="at")
    out, handed = app.topic("out", Step, key="key", key_type=str), app.stream("handed", Step, key_type=str)

    @app.actor
    class Bell(tr.Actor):
        @tr.process(taken)
        def hang(self, event: Step, ctx: tr.Context[str]) -> None:
            if event.other:
                ctx.set_timer(event.other, "ring")

        @tr.on_timer("ring")
        def ring(self, ctx: tr.Context[str]) -> None:
            ctx.emit(handed, Step(ctx.key, ctx.event_time))

    return app, out, handed


def test_what_a_stream_hands_on_is_as_late_as_what_has_caused_it() -> None:
    app, out, handed = handing_on()

    @app.process(handed)
    def echo(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event)

    run = Followed(app)
    run.run_held(*(Step(key, 1_000, 1_500) for key in KEYS), *steps(2_000))
    assert (run.stamps, run.published) == ([1_500] * 3, 1_999)
    assert run.drained
    run.run(Step("a", 2_100, 1_200))
    assert (run.behind, run.late) == ({("out", "echo"): 1}, 1)


def test_what_a_stream_hands_on_to_who_was_lifted_further_by_an_end_of_input_is_behind() -> None:
    app, out, handed = handing_on()

    @app.actor
    class Day(tr.Actor):
        @tr.process(handed)
        def take(self, event: Step, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 10_000, "end")
            ctx.emit(out, event)

        @tr.on_timer("end")
        def end(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Step(ctx.key, ctx.event_time))

    run = Followed(app)
    run.run_held(Step("a", 1_000, 1_100))
    for phase in range(1, last_phase(run.tasks[0].plan) + 1):
        run.tasks[0].end_input(phase)
        run.run_held()
    assert (run.stamps, run.published) == ([1_100, 11_100], 11_100)
    run.restart()  # its inputs continue, although they had ended
    run.run(Step("b", 2_000, 2_500), Step("b", 3_000, 4_000))
    assert run.behind == {}
    run.run(Step("c", 5_000, 20_000))
    assert (run.behind, run.late) == ({("out", "Day.take"): 1}, 1)


def test_what_an_operator_brings_that_was_idle_may_be_behind_what_others_have_let_be_published() -> None:
    app = tr.App("first", partitions=1)
    taken = app.topic("steps", Step, key="key", event_time="at")
    slow = app.topic("slow", Step, key="key", event_time="at", idle_after="1s")
    out = app.topic("out", Step, key="key")

    @app.process(taken)
    def echo(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event)

    @app.process(slow)
    def slowly(event: Step, ctx: tr.Context[str]) -> None:
        assert not ctx.is_late
        ctx.emit(out, event)

    run = Followed(app)
    run.run_held(*steps(1_000), topic="slow")
    run.run_held(*steps(1_000, 5_000))
    assert run.published == 999
    run.now += 1_000
    run.run_held()
    assert run.published == 4_999
    run.run(*steps(2_000), topic="slow")
    assert (run.behind, run.late) == ({("out", "slowly"): 1}, 1)
