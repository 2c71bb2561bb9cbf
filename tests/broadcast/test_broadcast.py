"""Every task has the whole of a broadcast topic as a table, and handles nothing before it has what was there at the first start."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.broadcast import tokens
from tailrace.core.errors import DefinitionError, QueryError
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.graph.model import graph_of
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots.arrow import parquet
from tailrace.testing import Harness
from tailrace.testing.exploring.exploration import explore_feed
from tailrace.testing.exploring.feed import feed_of, feed_of_log
from tests.history.rebuilding.lived import append, done, live_on
from tests.runtime.bounded_run import read_all

KINDS = 40


class Rule(msgspec.Struct, frozen=True):
    kind: tr.Key[str]
    version: int
    limit: float
    tags: tuple[str, ...] = ()


class Payment(msgspec.Struct, frozen=True):
    account: tr.Key[str]
    at: tr.EventTime[int]
    kind: str
    amount: int


class Verdict(msgspec.Struct, frozen=True):
    account: tr.Key[str]
    at: tr.EventTime[int]
    kind: str
    version: int | None
    is_over: bool
    rules: int


def make_app(*, partitions: int = 4, order: Literal["arrival", "event-time"] = "arrival") -> tr.App:
    app = tr.App("payments", partitions=partitions)
    payments = app.topic("paid", Payment)
    of_kind = app.topic("rules", Rule, broadcast=True)
    verdicts = app.topic("verdicts", Verdict)

    @app.actor
    class Account(tr.Actor, order=order):
        count: int = 0
        rules: tr.Shared[str, Rule] = tr.shared(of_kind)

        @tr.process(payments)
        def judge(self, event: Payment, ctx: tr.Context[str]) -> None:
            self.count += 1
            rule = self.rules.get(event.kind)
            assert (rule is not None) == (event.kind in self.rules)
            version = None if rule is None else rule.version
            is_over = rule is not None and event.amount > self.rules[event.kind].limit
            count = sum(rule == self.rules[key] for key, rule in self.rules.items())
            ctx.emit(verdicts, Verdict(event.account, event.at, event.kind, version, is_over, count))

    return app


app = make_app()


def rules(version: int, kinds: Iterable[int] = range(KINDS)) -> list[Rule]:
    return [Rule(f"kind-{kind}", version, kind + version, (f"v{version}",)) for kind in kinds]


def payments(count: int, start: int = 0) -> list[Payment]:
    """Of some kinds there is no rule."""
    return [
        Payment(f"account-{number % 31}", number * 1_000, f"kind-{number * 7 % (KINDS + 5)}", number % 60)
        for number in range(start, start + count)
    ]


def verdict(payment: Payment, known: dict[str, Rule]) -> Verdict:
    """The oracle: by a dict of the newest rules."""
    rule = known.get(payment.kind)
    is_over = rule is not None and payment.amount > rule.limit
    return Verdict(
        payment.account, payment.at, payment.kind, None if rule is None else rule.version, is_over, len(known)
    )


def verdicts(paid: Sequence[Payment], known: Sequence[Rule]) -> list[Verdict]:
    table = {one.kind: one for one in known}
    return ordered(verdict(one, table) for one in paid)


def ordered(found: Iterable[Verdict]) -> list[Verdict]:
    return sorted(found, key=lambda one: (one.at, one.account))


def records(events: Sequence[Rule | Payment]) -> list[Output]:
    """As producers write them."""
    return [
        Output("rules", one.kind.encode(), msgspec.json.encode(one), 1_000)
        if isinstance(one, Rule)
        else Output("paid", one.account.encode(), msgspec.json.encode(one), one.at)
        for one in events
    ]


APP = f"{__name__}:app"


@pytest.mark.parametrize("partitions", [1, 2, 7, 100])
def test_each_partition_has_a_token(partitions: int) -> None:
    assert [partition_of(one, partitions) for one in tokens(partitions)] == list(range(partitions))


# --- in a harness: every event is handled when the rules before it are


@pytest.mark.parametrize("order", ["arrival", "event-time"])
@pytest.mark.parametrize("how", [{}, {"checked": False}, {"reload": True}, {"state": "rocksdb"}])
@pytest.mark.parametrize("seed", range(3))
def test_a_table_has_the_newest_event_of_each_key(order: Any, how: Any, seed: int) -> None:
    dice, app, known, expected = (
        random.Random(seed),
        make_app(order=order),
        dict[str, Rule](),
        list[Verdict](),
    )
    paid, judged = iter(payments(400)), app.topics["verdicts"]
    found: list[Verdict] = []
    with Harness(app, **how) as h:
        for version in range(12):
            some = rules(version, dice.sample(range(KINDS), dice.randrange(1, KINDS)))
            h.send(app.topics["rules"], *some)
            known |= {one.kind: one for one in some}
            events = [next(paid) for _ in range(dice.randrange(20))]
            expected += [verdict(one, known) for one in events]
            found += h.send(app.topics["paid"], *events).to(judged)
            found += h.advance_watermark(max((one.at for one in events), default=0)).to(judged)
            if dice.random() < 0.5:
                h.crash()
        assert ordered(found) == ordered(expected)
        assert len({one.version for one in found}) > 5
        assert not h.replay().differences.count


def test_what_a_failed_event_has_read_changes_nothing() -> None:
    app = tr.App("failing", partitions=1, on_error="dead-letter")
    paid = app.topic("paid", Payment)
    table = app.topic("rules", Rule, broadcast=True)

    @app.actor
    class Account(tr.Actor):
        sum: float = 0
        rules: tr.Shared[str, Rule] = tr.shared(table)

        @tr.process(paid)
        def pay(self, event: Payment, ctx: tr.Context[str]) -> None:
            self.sum += sum(one.limit for one in self.rules.values())
            if self.rules[event.kind].version == 1:
                raise ValueError("not this version")

    with Harness(app) as h:
        h.send(table, *rules(1))
        h.send(paid, Payment("a", 1, "kind-1", 1))
        assert h.state(Account, "a") is None
        h.send(table, *rules(2))
        h.send(paid, Payment("a", 2, "kind-1", 1))
        state = h.state(Account, "a")
        assert state is not None
        assert state.sum == sum(one.limit for one in rules(2))
        assert not h.replay().differences.count
        assert len(h.dead_letters()) == 1


class Range(NamedTuple):
    low: float
    high: float


class Rich(msgspec.Struct, frozen=True):
    """Of types that are stored in another form than they have in memory."""

    kind: tr.Key[str]
    since: datetime
    price: Decimal
    range: Range
    cents: float


@pytest.mark.parametrize("how", [{}, {"checked": False}, {"reload": True}])
def test_values_are_those_of_the_topic(how: Any) -> None:
    app = tr.App("rich", partitions=1)
    paid = app.topic("paid", Payment)
    table = app.topic("rules", Rich, broadcast=True)
    seen: list[Rich] = []

    @app.actor
    class Account(tr.Actor):
        count: int = 0
        rules: tr.Shared[str, Rich] = tr.shared(table)

        @tr.process(paid)
        def pay(self, event: Payment, ctx: tr.Context[str]) -> None:
            self.count += len(self.rules)
            seen.append(self.rules["a"])
            assert list(self.rules.items()) == [("a", seen[-1])]

    given = Rich(
        "a", datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))), Decimal("1.50"), Range(1, 2), 3
    )
    with Harness(app, **how) as h:
        h.send(table, given)
        h.send(paid, *payments(3))
        h.crash()
        h.send(paid, *payments(3, 3))
        assert [*seen] == [given] * 6
        assert {type(one.range) for one in seen} == {Range}
        assert {type(one.cents) for one in seen} == {float}
        assert not h.replay().differences.count


def test_two_tables_of_one_app_are_complete_before_anything_else() -> None:
    app = tr.App("two", partitions=3)
    paid = app.topic("paid", Payment)
    tables = [app.topic(name, Rule, broadcast=True) for name in ("some", "more")]
    seen: list[tuple[int, int]] = []

    @app.actor
    class Account(tr.Actor):
        some: tr.Shared[str, Rule] = tr.shared(tables[0])
        more: tr.Shared[str, Rule] = tr.shared(tables[1])

        @tr.process(paid)
        def pay(self, event: Payment, ctx: tr.Context[str]) -> None:
            seen.append((len(self.some), len(self.more)))

    with Harness(app, slice_size=2) as h:
        h.log.append_all(records(payments(50)))
        h.log.append_all([one._replace(topic="some") for one in records(rules(1, range(10)))])
        h.log.append_all([one._replace(topic="more") for one in records(rules(1))])
        h.send(paid)
        assert seen == [(10, KINDS)] * 50


def test_the_graph_shows_who_looks_up_a_table() -> None:
    graph = graph_of([make_app().plan()])
    edges = {(one.source, one.kind, one.target) for one in graph.edges}
    inner = "topic:payments.rules.broadcast"
    assert {
        ("topic:rules", "forwards", inner),
        (inner, "takes", "actor:payments:rules"),
        ("actor:payments:rules", "looks-up", "actor:payments:Account"),
    } <= edges


def test_explore_takes_the_rules_first_from_a_log(tmp_path: Path) -> None:
    """Their records may be younger than those of all events."""
    append(tmp_path, records([*payments(300), *rules(1)]), {"paid": 4, "rules": 4})
    log = EmbeddedLog(tmp_path / "log", create=False)
    late = [one._replace(timestamp_ms=1 << 40) for one in records(rules(2))]
    log.append_all(late)
    feed = feed_of_log(make_app().plan(), log, most=100)
    log.close()
    counts = {
        topic: sum(len(fed) for place, fed in feed.places.items() if place.topic == topic)
        for topic in ("paid", "rules")
    }
    assert counts == {"paid": 100 - 2 * KINDS, "rules": 2 * KINDS}


def test_a_query_looks_up_the_table_as_it_was_committed() -> None:
    app = tr.App("asked", partitions=2)
    paid = app.topic("paid", Payment)
    table = app.topic("rules", Rule, broadcast=True)

    @app.actor
    class Account(tr.Actor):
        count: int = 0
        rules: tr.Shared[str, Rule] = tr.shared(table)

        @tr.process(paid)
        def pay(self, event: Payment, ctx: tr.Context[str]) -> None:
            self.count += 1

        @tr.query
        def version(self, kind: str) -> int:
            return self.rules[kind].version

        @tr.query
        def changes(self) -> None:
            self.rules = self.rules

    with Harness(app) as h:
        h.send(table, *rules(1))
        h.send(paid, Payment("a", 1, "kind-1", 1))
        assert h.query(Account, "a", "version", "kind-1") == 1
        h.send(table, *rules(2))
        assert h.query(Account, "a", "version", "kind-1") == 2
        with pytest.raises(QueryError, match="cannot be replaced"):
            h.query(Account, "a", "changes")


def test_reference_data_holds_no_watermark_back_and_goes_with_a_snapshot() -> None:
    app = make_app()
    paid, table, judged = (app.topics[name] for name in ("paid", "rules", "verdicts"))
    with Harness(app) as h:
        h.send(table, *rules(1))
        h.send(paid, *payments(100))
        h.advance_watermark(10_000_000)
        assert [h.watermark(number) for number in range(4)] == [10_000_000] * 4
        assert h.late == 0
        taken = h.snapshot()
    with Harness(app, start=taken) as h:
        found: list[Verdict] = h.send(paid, *payments(20, 20_000)).to(judged)
        assert ordered(found) == verdicts(payments(20, 20_000), rules(1))


def test_a_topic_may_become_a_table_of_an_app_that_has_state() -> None:
    before = tr.App("grown", partitions=2)
    before.topic("rules", Rule)
    paid = before.topic("paid", Payment)

    @before.process(paid)
    def pay(event: Payment, ctx: tr.Context[str]) -> None: ...

    with Harness(before) as h:
        h.send(paid, *payments(10))
        taken = h.snapshot()
    after = make_app(partitions=2).renamed("grown")
    with Harness(after, start=taken) as h:
        h.log.append_all(records([*payments(10, 10), *rules(1)]))
        found: list[Verdict] = h.advance_watermark(1).to(after.topics["verdicts"])
        assert ordered(found) == verdicts(payments(10, 10), rules(1))


# --- history


def test_a_rebuild_in_stages_reads_all_rules_first(tmp_path: Path) -> None:
    append(tmp_path, records([*rules(1), *payments(300)]), {"paid": 4, "rules": 4})
    live_on(tmp_path, APP)
    append(tmp_path, records([*rules(2), *payments(300, 300)]), {"paid": 4, "rules": 4})
    live_on(tmp_path, APP)
    log = EmbeddedLog(tmp_path / "log", create=False)
    was = ordered(read_all(log, "verdicts", Verdict))
    log.close()
    assert was != verdicts(payments(600), rules(2))
    _, snapshot = done(tmp_path, APP, order="stages", outputs=f"parquet:{tmp_path / 'out'}")
    assert ordered(_written(tmp_path, snapshot)) == verdicts(payments(600), rules(2))


def _written(folder: Path, snapshot: Any) -> list[Verdict]:
    files = (folder / "out" / "payments" / snapshot.manifest.id).glob("*.parquet")
    return [
        msgspec.json.decode(row["value"], type=Verdict)
        for file in files
        for row in parquet.read_table(file).to_pylist()
        if row["topic"] == "verdicts"
    ]


def test_no_schedule_changes_what_the_rules_of_the_first_start_say() -> None:
    plan = make_app().plan()
    feed = feed_of(plan, records([*payments(100), *rules(1), *rules(2)]))
    report = explore_feed(plan, feed, schedules=20)
    assert report.keys > 0
    assert not report.errors
    assert not report.declared


# --- refused


def test_what_is_not_allowed_is_refused_where_it_is_declared() -> None:
    class Loose(msgspec.Struct):
        kind: tr.Key[str]

    class Listed(msgspec.Struct, frozen=True):
        kind: tr.Key[str]
        tags: list[str]

    app = tr.App("refusing")
    for type_ in (Loose, Listed):
        with pytest.raises(DefinitionError, match="can be changed"):
            app.topic("rules", type_, broadcast=True)
    with pytest.raises(DefinitionError, match="no key"):
        app.topic("rules", Rule, key=None, broadcast=True)
    options: list[dict[str, Any]] = [
        {"late": "drop"},
        {"watermark": False},
        {"repartition": True},
        {"idle_after": "1s"},
    ]
    for option in options:
        with pytest.raises(DefinitionError, match="Leave that out"):
            app.topic("rules", Rule, broadcast=True, **option)
    plain = app.topic("plain", Rule)
    with pytest.raises(DefinitionError, match="not a broadcast topic"):
        tr.shared(plain)


def test_a_broadcast_topic_is_not_handled_and_not_shown_in_another_app() -> None:
    app, other = tr.App("one"), tr.App("other")
    table = app.topic("rules", Rule, broadcast=True)
    paid = other.topic("paid", Payment)

    @app.process(table)
    def taken(event: Rule, ctx: tr.Context[str]) -> None: ...

    with pytest.raises(DefinitionError, match="every task has it as a table"):
        app.plan()

    @other.actor
    class Account(tr.Actor):
        rules: tr.Shared[str, Rule] = tr.shared(table)

        @tr.process(paid)
        def pay(self, event: Payment, ctx: tr.Context[str]) -> None: ...

    with pytest.raises(DefinitionError, match="declared in another app"):
        other.plan()


def test_the_name_of_an_actor_is_free_for_the_table() -> None:
    app = tr.App("named")
    app.topic("rules", Rule, broadcast=True)
    with pytest.raises(DefinitionError, match="another actor or function"):

        @app.actor(name="rules")
        class Rules(tr.Actor):
            @tr.on_message
            def told(self, message: Rule, ctx: tr.Context[str]) -> None: ...
