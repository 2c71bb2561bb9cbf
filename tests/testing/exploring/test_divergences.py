"""Where two tracks part, on tracks written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.engine.observer import Moment
from tailrace.core.engine.units import TIMER
from tailrace.testing.exploring.divergences import Divergences, first_divergence
from tailrace.testing.exploring.tracks import Divergence, Trace, TraceStep, TrackId, numbered

PLACE = TrackId("Actor", b"k")
Made = list[TraceStep]


def event(
    name: str,
    at: int = 0,
    out: str = "",
    state: dict[str, Any] | None = None,
    *,
    late: bool = False,
    now: int = 0,
    reads: tuple[str, ...] = (),
    written: bool = False,
    place: TrackId = PLACE,
) -> TraceStep:
    """A record that was handled: what it emitted, and the fields afterwards."""
    cause = ("written", "in-app", b"k", name.encode(), 0) if written else ("record", name, 0, 0)
    moment = Moment("k", 0, 0, name, None, 0, at, -1, now, late)
    return _step(place, cause, moment, out, state, reads)


def timer(name: str, at: int, out: str = "", state: dict[str, Any] | None = None) -> TraceStep:
    moment = Moment("k", TIMER, at, None, name, rows.EVENT_TIME, at, at, 0, False)
    return _step(PLACE, ("timer", 0, name, at), moment, out, state, ())


def _step(
    place: TrackId,
    cause: tuple[Any, ...],
    moment: Moment,
    out: str,
    state: dict[str, Any] | None,
    reads: tuple[str, ...],
) -> TraceStep:
    outputs = ((("out"), b"k", out.encode(), 0, ()),) if out else ()
    after = ((b"", b"\x10" + msgspec.msgpack.encode(state or {})),)
    return TraceStep(
        place, 0, (*cause, "handler"), cause, "handler", moment, frozenset(reads), outputs, after
    )


def parted(one: Made, other: Made) -> Divergence | None:
    return first_divergence(PLACE, numbered(one), numbered(other))


def order(one: Made, other: Made) -> tuple[str, str, int]:
    """The two steps of a divergence in order, and the run in which the first came first."""
    found = parted(one, other)
    assert found is not None
    assert found.kind == "order"
    assert found.other is not None
    return _name(found.step), _name(found.other), found.side


def _name(step: TraceStep) -> str:
    return str(step.moment.timer if step.is_timer else step.moment.event)


def test_equal_tracks_do_not_part() -> None:
    track = [event("a", 1), event("b", 2, "out")]
    assert parted(track, list(track)) is None
    assert parted([], []) is None


def test_an_order_without_an_effect_is_no_parting() -> None:
    one = [event("a", state={"n": 1}), event("b", state={"n": 2}), event("c", state={"n": 3})]
    other = [event("b", state={"n": 1}), event("a", state={"n": 2}), event("c", state={"n": 3})]
    assert parted(one, other) is None


def test_what_comes_after_an_order_without_an_effect_is_found() -> None:
    one = [event("a", state={"n": 1}), event("b", state={"n": 2}), event("c", out="x"), event("d", out="y")]
    other = [event("b", state={"n": 1}), event("a", state={"n": 2}), event("d", out="y"), event("c", out="x")]
    assert order(one, other) == ("c", "d", 0)


def test_the_last_writers_of_a_field_are_found() -> None:
    one = [event("a", state={"v": 1}), event("b", state={"v": 2}), event("c", state={"v": 3})]
    other = [event("b", state={"v": 2}), event("c", state={"v": 3}), event("a", state={"v": 1})]
    assert order(one, other) == ("a", "c", 0)


def test_a_timer_that_fired_before_an_event_that_should_have_prevented_it_is_found() -> None:
    one = [event("placed", 0), event("paid", 5, "paid")]
    other = [event("placed", 0), timer("unpaid", 10, "unpaid"), event("paid", 5)]
    assert order(one, other) == ("unpaid", "paid", 1)
    assert order(other, one) == ("unpaid", "paid", 0)


def test_a_late_event_is_likelier_than_another_that_came_between() -> None:
    one = [event("a", 9), event("opened", 5), timer("t", 10, "open"), event("b", 12)]
    other = [event("a", 9), event("b", 12), timer("t", 10, "shut"), event("opened", 5, late=True)]
    assert order(one, other) == ("t", "opened", 1)


def test_a_step_that_only_one_run_has_is_found() -> None:
    found = parted([event("a"), event("b")], [event("b")])
    assert found is not None
    assert (found.kind, found.side, _name(found.step), found.other) == ("missing", 0, "a", None)


def test_another_result_of_the_same_step_is_found() -> None:
    found = parted([event("a"), event("b", out="1")], [event("a"), event("b", out="2")])
    assert found is not None
    assert (found.kind, _name(found.step)) == ("result", "b")


def test_another_time_to_live_after_the_first_step_is_no_other_result() -> None:
    def remembered(value: bytes, until_ms: int) -> TraceStep:
        entry = rows.pack_entry(value, rows.EVENT_TIME, until_ms)
        return replace(event("a"), after=((b"m1", entry),))

    for value, kind in ((b"1", "time to live"), (b"2", "result")):
        found = parted([remembered(b"1", 10)], [remembered(value, 20)])
        assert found is not None
        assert (found.kind, _name(found.step)) == (kind, "a")


def test_what_a_handler_asked_for_is_found_behind_an_order_that_did_no_harm() -> None:
    one = [event("a", state={"n": 1}), event("b", state={"n": 2, "at": 5}, reads=("now",), now=5)]
    other = [event("b", state={"n": 1, "at": 7}, reads=("now",), now=7), event("a", state={"n": 2, "at": 7})]
    found = parted(one, other)
    assert found is not None
    assert (found.kind, _name(found.step)) == ("result", "b")


def test_what_the_app_wrote_is_followed_back_to_its_writer() -> None:
    writer = TrackId("Writer", b"w")
    runs: list[Trace] = []
    for first, last, value in (("a", "b", "2"), ("b", "a", "1")):
        trace = Trace()
        trace.tracks[writer] = [
            event(first, place=writer, state={"v": first}),
            event(last, place=writer, state={"v": last}, out=""),
        ]
        wrote = timer("end", 9, "", {"v": last})
        outputs = (("in-app", b"k", value.encode(), 0, ()),)
        trace.tracks[writer].append(
            TraceStep(
                writer, 0, wrote.id, wrote.cause, "handler", wrote.moment, outputs=outputs, after=wrote.after
            )
        )
        trace.tracks[PLACE] = [event(value, written=True, state={"got": value})]
        runs.append(trace)
    divergences = Divergences((runs[0], runs[1]))
    found = divergences.of(PLACE)
    assert found is not None
    assert found.place == writer
    assert set(divergences.visited) == {PLACE, writer}


def test_a_step_that_occurs_twice_is_told_apart_by_its_number() -> None:
    ids = [step_id for step_id, _ in numbered([event("a"), event("a"), event("b")])]
    assert len(set(ids)) == 3
    assert parted([event("a"), event("a")], [event("a")]) is not None
