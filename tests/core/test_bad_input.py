"""Bad input: whatever comes, it is refused or taken back as a whole, told with its reason, and the rest goes
on.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.query import QueryReader
from tailrace.core.engine.task import Task
from tailrace.core.errors import (
    BadRecordError,
    CorruptStateError,
    FormatError,
    HandlerError,
    QueryError,
    StateLeakError,
)
from tailrace.state import MemoryStore
from tests.core.bench import KEPT, NINE_THOUSAND, Bench, Box, Circle, Square, header, leaky_app, shapes_app

SET_UP = (Circle("k", 1_000, "kept"), Circle("k", 1_001, "more"))

REFUSED = {
    "undecodable bytes": (b"\xff\xfe{", "undecodable"),
    "cut short": (b'{"type":"circle","key":"k"', "undecodable"),
    "no bytes at all": (None, "undecodable"),
    "empty": (b"", "undecodable"),
    "nested without end": (b'{"type":"circle","x":' + b"[" * 100_000, "undecodable"),
    "wrong type of a field": (b'{"type":"circle","key":"k","at":"noon"}', "wrong-type"),
    "a list for an object": (b"[1,2]", "wrong-type"),
    "unknown union tag": (b'{"type":"triangle","key":"k","at":1}', "wrong-type"),
    "no union tag": (b'{"key":"k","at":1}', "wrong-type"),
    "missing key": (b'{"type":"circle","at":1}', "wrong-type"),
    "key that is null": (b'{"type":"square","key":null,"at":1}', "missing-key"),
    "time that is null": (b'{"type":"circle","key":"k","at":null}', "missing-time"),
    "negative time": (b'{"type":"circle","key":"k","at":-1}', "bad-time"),
    "the year 9999": (msgspec.json.encode(Circle("k", NINE_THOUSAND)), "bad-time"),
    "a time past 64 bits": (b'{"type":"circle","key":"k","at":99999999999999999999}', "bad-time"),
}


class TestARecordThatCannotBeHandled:
    @pytest.mark.parametrize("name", REFUSED)
    def test_becomes_a_dead_letter_with_its_reason_and_leaves_no_other_trace(self, name: str) -> None:
        value, reason = REFUSED[name]
        clean, bench = Bench(shapes_app()), Bench(shapes_app())
        clean.send(*SET_UP)
        bench.send(SET_UP[0], value, SET_UP[1])
        clean.commit()
        bench.commit()
        assert bench.state() == clean.state()
        (letter,) = bench.letters()
        assert header(letter, "reason") == reason
        assert (letter.key, letter.value, letter.timestamp_ms) == (b"the record's key", value, 77)
        assert (header(letter, "topic"), header(letter, "offset")) == ("shapes", "1")
        assert letter.headers[0] == ("h", b"1")
        assert bench.task.totals.refused == 1
        assert bench.task.watermark == clean.task.watermark

    @pytest.mark.parametrize("name", REFUSED)
    def test_stops_the_task_where_told_and_what_came_before_may_be_committed(self, name: str) -> None:
        value, reason = REFUSED[name]
        bench = Bench(shapes_app("stop"))
        with pytest.raises(BadRecordError) as caught:
            bench.send(SET_UP[0], value, SET_UP[1])
        assert (caught.value.reason, caught.value.topic, caught.value.offset) == (reason, "shapes", 1)
        bench.commit()
        assert bench.task.positions["shapes"] == 1
        assert bench.letters() == []

    @pytest.mark.parametrize("error", [KeyError, IndexError, ZeroDivisionError, RuntimeError, AttributeError])
    def test_because_its_key_cannot_be_worked_out_is_one_record_lost_and_not_the_task(
        self, error: type[Exception]
    ) -> None:
        def key(shape: Any) -> str:
            if shape.do == "bad":
                raise error("no key")
            return str(shape.key)

        bench = Bench(shapes_app(key=key))
        bench.send(Circle("k", 1, "bad"), Circle("k", 2))
        bench.commit()
        assert [header(one, "reason") for one in bench.letters()] == ["bad-key"]
        assert bench.task.totals.records == 1


class TestAHandlerThatFails:
    @pytest.mark.parametrize(
        "do", ["fail", "fail and clear", "fail to seal", "fail without words", "fail badly"]
    )
    @pytest.mark.parametrize("commit_before", [True, False])
    @pytest.mark.parametrize("settings", [{}, {"reload": True}, {"checked": True}, {"cache_bytes": 0}])
    def test_leaves_nothing_but_its_dead_letter(
        self, do: str, commit_before: bool, settings: dict[str, Any]
    ) -> None:
        clean, bench = Bench(shapes_app()), Bench(shapes_app(), **settings)
        for one in (clean, bench):
            one.send(SET_UP[0])
            if commit_before:
                one.commit()
        bench.send(Circle("k", 1_001, do))
        bench.send(Circle("new", 1_001, do))
        for one in (clean, bench):
            one.send(SET_UP[1], Circle("k", 1_002), Circle("new", 1_003, "kept"))
            one.commit()
            one.send(Circle("k", 20_000))
            one.commit()
        assert bench.state() == clean.state()
        assert bench.measured == []
        letters = bench.letters()
        assert [header(one, "reason") for one in letters] == ["handler-failed", "handler-failed"]
        assert (header(letters[0], "handler"), header(letters[0], "key")) == ("pile.take", "k")
        others = [one for one in bench.outputs if one not in letters]
        assert [one[:4] for one in others] == [one[:4] for one in clean.outputs]

    def test_stops_the_task_where_told_and_nothing_of_it_is_in_the_commit(self) -> None:
        clean, bench = Bench(shapes_app("stop")), Bench(shapes_app("stop"))
        clean.send(SET_UP[0])
        with pytest.raises(HandlerError, match="told to fail") as caught:
            bench.send(SET_UP[0], Circle("k", 900, "fail"))
        assert (caught.value.handler, caught.value.offset, caught.value.key) == ("pile.take", 1, "k")
        clean.commit()
        bench.commit()
        assert bench.state() == clean.state()
        assert bench.outputs == clean.outputs
        assert bench.store.cut == clean.store.cut  # not even counted as late, though it came late
        assert bench.measured == []

    def test_by_its_timer_uses_the_timer_up_and_leaves_nothing_else(self) -> None:
        clean, bench = Bench(shapes_app()), Bench(shapes_app())
        clean.send(SET_UP[0], Circle("k", 1_001, "timer fails"))
        bench.send(SET_UP[0], Circle("k", 1_001, "timer fails"))
        clean.task = clean.new_task()
        bench.commit()
        (letter,) = bench.letters()
        assert header(letter, "timer").startswith("fails at")
        assert letter.value is None
        (fields,) = [v for row, v in bench.state().items() if not rows.read_state_row(row).rest]
        assert msgspec.msgpack.decode(fields[rows.start_of_fields(fields) :])["words"] == [
            "kept",
            "timer fails",
        ]
        assert [*rows.timers_inside(fields)] == [(rows.EVENT_TIME, b"nlate")]
        bench.send(Circle("k", 1_500))
        bench.commit()
        assert len(bench.letters()) == 1

    def test_by_its_timer_stops_the_task_where_told_and_the_timer_stays(self) -> None:
        bench = Bench(shapes_app("stop"))
        with pytest.raises(HandlerError) as caught:
            bench.send(SET_UP[0], Circle("k", 1_001, "timer fails"), Circle("k", 1_002))
        assert caught.value.timer is not None
        bench.commit()
        assert bench.task.positions["shapes"] == 2
        bench.task = bench.new_task()
        assert bench.task.draining
        with pytest.raises(HandlerError):
            bench.task.drain()

    def test_in_a_timer_loop_is_stopped_and_named(self) -> None:
        bench = Bench(shapes_app("stop"), timer_loop_cap=20)
        with pytest.raises(HandlerError, match="times in a row") as caught:
            bench.send(Circle("k", 1_000, "loop"), Circle("k", 1_001))
        assert caught.value.key == "k"

    def test_in_a_timer_loop_is_cut_off_and_the_rest_goes_on(self) -> None:
        bench = Bench(shapes_app(), timer_loop_cap=20)
        bench.send(Circle("k", 1_000, "loop"), Circle("other", 1_001), Circle("k", 1_002))
        bench.commit()
        (letter,) = bench.letters()
        assert "TimerLoopError" in header(letter, "error")
        assert bench.task.totals.records == 3
        assert bench.task.totals.fired == 21

    @pytest.mark.parametrize("how", ["fail", "change", "entry", "inside"])
    def test_in_a_query_is_told_and_changes_nothing(self, how: str) -> None:
        bench = Bench(shapes_app())
        bench.send(*SET_UP)
        bench.commit()
        before = bench.state()
        pile = bench.app.plan().actors[0].cls
        with pytest.raises(QueryError):
            QueryReader(bench.app.plan(), 0, bench.store).query(pile, "k", "spoil", how)
        assert QueryReader(bench.app.plan(), 0, bench.store).query(pile, "k", "spoil", "") == 2
        bench.send(Circle("k", 1_002))
        bench.commit()
        assert bench.state() != before
        assert QueryReader(bench.app.plan(), 0, bench.store).query(pile, "k", "spoil", "") == 3


class TestAReferenceThatWasKept:
    """Handlers that keep what is not theirs: found in a checked run, and harmless to what is durable where it
    can be.
    """

    @pytest.fixture(autouse=True)
    def nothing_kept(self) -> Any:
        KEPT.clear()
        yield
        KEPT.clear()

    @pytest.mark.parametrize("touched_again", [True, False])
    @pytest.mark.parametrize("committed_between", [True, False])
    def test_to_another_keys_state_is_found_in_a_checked_run_and_never_skipped(
        self, touched_again: bool, committed_between: bool
    ) -> None:
        bench = Bench(leaky_app("n"), checked=True)
        bench.send(Circle("a", 1, "keep"))
        if committed_between:
            bench.commit()
        cut = bench.store.cut
        with pytest.raises(StateLeakError, match="'a'"):
            bench.send(Circle("b", 2, "change"))
            if touched_again:
                bench.send(Circle("a", 3))
            bench.commit()
        assert bench.store.cut == cut

    @pytest.mark.parametrize("settings", [{}, {"reload": True}, {"checked": True}])
    def test_to_another_keys_state_changes_nothing_where_instances_are_replaced_by_their_encoding(
        self, settings: dict[str, Any]
    ) -> None:
        clean, bench = Bench(leaky_app("words")), Bench(leaky_app("words"), **settings)
        clean.send(Circle("a", 1), Circle("b", 2))
        bench.send(Circle("a", 1, "keep"), Circle("b", 2, "change"))
        for one in (clean, bench):
            one.commit()
        assert bench.state() == clean.state()

    @pytest.mark.parametrize("settings", [{}, {"reload": True}, {"checked": True}])
    def test_to_an_old_event_that_was_stored_changes_nothing_when_the_event_is_changed(
        self, settings: dict[str, Any]
    ) -> None:
        bench = Bench(shapes_app(), **settings)
        bench.send(Square("k", 1, "keep event", Box([1, 2])), Circle("k", 2, "change event"))
        bench.commit()
        pile = bench.app.plan().actors[0].cls
        assert QueryReader(bench.app.plan(), 0, bench.store).instance(pile, "k").box == Box([1, 2])

    def test_to_a_context_cannot_be_used_once_the_handler_has_returned(self) -> None:
        bench = Bench(shapes_app())
        bench.send(Circle("k", 1, "keep context"))
        with pytest.raises(tr.UsageError):
            KEPT[0].set_timer(5, name="late")
        with pytest.raises(tr.UsageError):
            KEPT[0].clear()


class TestAClockThatJumpsBack:
    def test_is_taken_as_standing_still(self) -> None:
        bench = Bench(shapes_app())
        bench.task.clock(5_000)
        bench.task.clock(3_000)
        assert bench.task.now == 5_000
        bench.commit()
        bench.task = bench.new_task()
        bench.task.clock(1)
        assert bench.task.now == 5_000
        assert not bench.task.dirty


class TestStateOfAnotherVersion:
    def test_a_cut_of_a_newer_format_is_refused(self) -> None:
        bench = Bench(shapes_app())
        bench.send(*SET_UP)
        bench.commit()
        fields = msgspec.msgpack.decode(bench.store.cut or b"")
        fields[0] = tape.FORMAT + 1
        fields.append("something new")
        with pytest.raises(FormatError, match="reads only format"):
            Task(bench.app.plan(), 0, bench.store, msgspec.msgpack.encode(fields))

    def test_a_tape_of_another_format_is_refused_whatever_else_it_holds(self) -> None:
        with pytest.raises(FormatError, match="reads only format"):
            tape.decode_tape(msgspec.msgpack.encode([tape.FORMAT + 1, {"all": "different"}]))
        with pytest.raises(FormatError, match="reads only format"):
            tape.decode_tape(msgspec.msgpack.encode([tape.FORMAT - 1, {"all": "different"}]))

    @pytest.mark.parametrize(
        "data", [b"", b"\xc1", b"\x90", b"\x91\xa1x", msgspec.msgpack.encode([tape.FORMAT, "too short"])]
    )
    def test_what_is_no_cut_and_no_tape_is_corrupt(self, data: bytes) -> None:
        for decode in (tape.decode_cut, tape.decode_tape):
            with pytest.raises(CorruptStateError):
                decode(data)

    def test_a_cut_of_another_app_or_partition_is_refused(self) -> None:
        bench = Bench(shapes_app())
        bench.commit()
        other = tr.App("other", partitions=2)
        with pytest.raises(CorruptStateError, match="shapes"):
            Task(other.plan(), 0, MemoryStore(), bench.store.cut)
