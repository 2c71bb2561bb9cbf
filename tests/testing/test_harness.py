"""What the harness promises: the life of a service as it is, and loud errors for what is no use of it."""

from collections import Counter
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.task import ORIGIN_HEADER
from tailrace.core.errors import BadRecordError, HandlerError, QueryError, TailraceError, UsageError
from tailrace.core.values.partitioner import partition_of
from tailrace.testing import Harness, Out
from tests.testing import everything
from tests.testing.everything import Did, Do, Everything, held

KEYS = [f"k{number}" for number in range(20)]


def did(outs):
    return [(event.key, event.what) for event in outs.to(everything.did)]


# --- what a call does, and shows


def test_an_output_is_shown_as_a_consumer_would_find_it():
    with Harness(everything.app, partitions=1) as h:
        (out,) = h.send(everything.main, Do("a", 1_234, "tag"), timestamp_ms=99)
        assert isinstance(out, Out)
        assert (out.topic, out.key, out.timestamp_ms) == ("did", "a", 1_234)
        assert isinstance(out.event, Did)
        assert out.headers == ((ORIGIN_HEADER, b"everything/0/0"),)
        (record,) = h.log.read("did")
        assert everything.did.decode(record.value or b"") == out.event
        (record,) = h.log.read("main")
        assert record.timestamp_ms == 99


def test_what_is_looked_at_is_a_copy():
    with Harness(everything.app) as h:
        h.send(everything.main, Do("a", 1_000, "tag", name="x"))
        held(h, Everything, "a").tags.append("changed outside")
        assert held(h, Everything, "a").tags == ["x"]
        assert h.state(Everything, "nobody") is None


@pytest.mark.parametrize("every", [None, 1, 2, 3])
def test_messages_are_followed_from_partition_to_partition_until_all_is_quiet(every):
    with Harness(everything.app, partitions=4, commit_every=every) as h:
        out = h.send(everything.main, *(Do(key, 1_000, "send", 3, "b") for key in KEYS[:4]))
        got = Counter({"b": 4} | {f"{key}+": 3 for key in KEYS[:4]})
        assert Counter(key for key, what in did(out) if what == "got") == got
        assert {one.timestamp_ms for one in out} == {1_000}
        h.replay()


def test_a_clock_that_is_set_back_is_not_seen_by_handlers():
    with Harness(everything.app, now_ms=9_000) as h:
        h.send(everything.main, Do("a", 1_000, "number", 1))
        h.advance_clock(2_000)
        (event,) = h.send(everything.main, Do("a", 1_000, "tag")).to(everything.did)
        assert " 9000 " in event.seen
        assert h.now == 2_000
        h.replay()


def test_metrics_are_shown_once_they_are_committed_and_not_doubled_by_a_crash():
    with Harness(everything.app, commit_every="manual") as h:
        h.send(everything.main, Do("a", 1_000, "tag"))
        assert h.metrics == {}
        h.crash()
        h.send(everything.main, Do("a", 1_000, "tag"))
        h.commit()
        assert h.metrics == {"done": 2}


def test_a_query_reads_committed_state():
    with Harness(everything.app) as h:
        h.send(everything.main, Do("a", 1_000, "tag", name="x"), Do("a", 1_000, "tag", name="y"))
        assert h.query(Everything, "a", "describe") == "2 ['x', 'y']"
        assert h.query(Everything, "a", "describe", 1) == "2 ['x']"
        with pytest.raises(QueryError, match="no instance of this key"):
            h.query(Everything, "b", "describe")
        with pytest.raises(QueryError, match="no query 'nothing'"):
            h.query(Everything, "a", "nothing")


# --- commits, crashes, restores


def test_nothing_is_visible_until_it_is_committed():
    with Harness(everything.app, commit_every="manual") as h:
        assert h.send(everything.main, Do("a", 1_000, "send", 0, "b")) == []
        assert h.state(Everything, "a") is None
        assert did(h.commit()) == [("a", "send")]
        assert held(h, Everything, "a").count == 1
        assert h.state(Everything, "b") is None
        assert did(h.commit()) == [("b", "got")]


def test_a_crash_loses_what_was_not_committed_and_it_is_done_again_once():
    with Harness(everything.app, commit_every="manual") as h:
        h.send(everything.main, Do("a", 1_000, "tag", name="x"))
        h.commit()
        h.send(everything.main, Do("a", 1_001, "tag", name="y"))
        h.crash()
        assert held(h, Everything, "a").tags == ["x"]
        h.commit()
        assert held(h, Everything, "a").tags == ["x", "y"]
        assert did(h.commit()) == []
        assert len(h.emitted(everything.did)) == 2
        h.replay()


def test_commits_fall_after_as_many_records_as_asked_for():
    with Harness(everything.app, partitions=1, commit_every=3) as h:
        h.send(everything.main, *(Do("a", 1_000, "tag") for _ in range(10)))
        assert h.replay().commits == 4


# --- failures


def test_nothing_of_a_failed_handler_remains_and_its_event_is_a_dead_letter():
    with Harness(everything.app, partitions=1) as h:
        h.send(everything.main, Do("a", 1_000, "tag", name="x"))
        assert did(h.send(everything.main, Do("a", 1_001, "fail"), Do("a", 1_002, "tag", name="y"))) == [
            ("a", "tag")
        ]
        found = held(h, Everything, "a")
        assert (found.count, found.tags, len(found.boxes), list(found.history)) == (2, ["x", "y"], 0, [])
        assert h.timers(Everything, "a") == {}
        (letter,) = h.dead_letters()
        wanted = ("main", "handler-failed", "ValueError: as told")
        assert (letter.topic, letter.reason, letter.error) == wanted
        assert (letter.key, everything.main.decode(letter.value or b"")) == (b"a", Do("a", 1_001, "fail"))
        assert letter.headers["tailrace-offset"] == b"1"
        assert h.metrics == {"done": 2}
        h.replay()


def test_a_key_from_a_partition_that_is_not_its_own_is_a_dead_letter():
    wrong = (partition_of(b"a", 4) + 1) % 4
    with Harness(everything.app) as h:
        event = everything.main.encode(Do("a", 1_000, "tag"))
        h.send_raw(everything.main, event, b"a", partition=wrong)
        (letter,) = h.dead_letters()
        assert letter.reason == "foreign-partition"
        assert h.keys(Everything) == []
        h.replay()


class Step(msgspec.Struct, frozen=True):
    key: str | None
    n: int


class Sum(msgspec.Struct, frozen=True):
    key: str
    n: int


stopping = tr.App("stopping", partitions=1)
steps = stopping.topic("steps", Step, key="key", key_type=str, event_time=tr.RECORD_TIME)
sums = stopping.topic("sums", Sum, key="key", key_type=str)
unread = stopping.topic("unread", Step, key="key", key_type=str)


@stopping.actor
class Summing(tr.Actor):
    total: int = 0
    parts: list[int] = tr.field(default_factory=list)

    @tr.process(steps)
    def add(self, step: Step, ctx: tr.Context[str]) -> None:
        self.total += step.n
        self.parts.append(step.n)
        if step.n == 13:
            raise ValueError("thirteen")
        ctx.emit(sums, Sum(ctx.key, self.total))

    @tr.query
    def spoil(self) -> None:
        self.total = 0


def test_a_failure_where_the_app_stops_is_raised_and_what_was_committed_stays():
    with Harness(stopping) as h:
        h.send(steps, Step("a", 1))
        with pytest.raises(HandlerError, match=r"Summing\.add failed with ValueError: thirteen") as caught:
            h.send(steps, Step("a", 2), Step("a", 13))
        assert isinstance(caught.value.__cause__, ValueError)
        assert held(h, Summing, "a").parts == [1]
        with pytest.raises(HandlerError):  # the record is still there
            h.send(steps, Step("a", 3))
        assert h.emitted(sums) == [Sum("a", 1)]
        h.replay()


def test_an_event_without_a_key_is_sent_without_one_and_refused_by_the_task():
    with Harness(stopping) as h, pytest.raises(BadRecordError, match="missing-key"):
        h.send(steps, Step(None, 1))


def test_records_bear_the_time_of_the_clock_unless_they_are_given_one():
    with Harness(stopping, now_ms=500) as h:
        assert h.send(steps, Step("a", 1))[0].timestamp_ms == 500
        assert h.send(steps, Step("a", 1), timestamp_ms=700)[0].timestamp_ms == 700
        assert h.watermark() == 699


def test_a_query_that_changes_state_is_refused_and_changes_nothing():
    with Harness(stopping) as h:
        h.send(steps, Step("a", 1))
        with pytest.raises(QueryError, match="has changed the instance"):
            h.query(Summing, "a", "spoil")
        assert held(h, Summing, "a").total == 1


# --- wrong use


def test_wrong_use_is_refused_in_words_and_leaves_the_service_up():
    wrong_event: Any = Sum("a", 1)
    a_name: Any = "steps"
    a_stream: Any = everything.inner
    with Harness(stopping) as h:
        h.send(steps, Step("a", 1))
        with pytest.raises(UsageError, match="Sum was sent to 'steps', which holds Step"):
            h.send(steps, wrong_event)
        with pytest.raises(
            UsageError, match="topic 'main' belongs to the app 'everything', not to the app 'stopping'"
        ):
            h.send(everything.main, Do("a", 1, "tag"))
        with pytest.raises(UsageError, match="no handler of the app 'stopping' takes the topic 'unread'"):
            h.send(unread, Step("a", 1))
        with pytest.raises(UsageError, match="'steps' is not a topic"):
            h.send(a_name, Step("a", 1))
        with pytest.raises(UsageError, match="is not a topic"):
            h.send(a_stream, Do("a", 1, "tag"))
        with pytest.raises(UsageError, match="Everything is not an actor of the app 'stopping'"):
            h.query(Everything, "a", "describe")
        with pytest.raises(UsageError, match="Everything is not an actor"):
            h.state(Everything, "a")
        with pytest.raises(TailraceError, match="the key 1 is not of type str"):
            h.state(Summing, 1)
        assert h.send(steps, Step("a", 1)).to(sums) == [Sum("a", 2)]


def test_a_closed_harness_says_so():
    h = Harness(stopping)
    h.close()
    h.close()
    with pytest.raises(UsageError, match="the harness is closed"):
        h.send(steps, Step("a", 1))


@pytest.mark.parametrize("how", [{"slice_size": 0}, {"commit_every": 0}])
def test_sizes_that_make_no_sense_are_refused(how):
    with pytest.raises(UsageError, match="numbers of records"):
        Harness(stopping, **how)
