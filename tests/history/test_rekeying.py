"""State under other keys, and with other fields: against plain Python."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.errors import UsageError
from tailrace.core.records import Output
from tailrace.history.moving.reshaping import reshape, rewritten
from tailrace.history.moving.rewriting import Rewrite
from tailrace.history.reading.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tests.history.test_reshaping import Life


class Sale(msgspec.Struct, frozen=True):
    who: str
    """Shop and customer."""
    name: str
    at: tr.EventTime[int]
    cents: int


class Said(msgspec.Struct, frozen=True):
    name: tr.Key[str]
    at: int


def make_app(*, new: bool) -> tr.App:
    """The new code has one customer for all shops, and totals in euros and cents."""
    app = tr.App("till", partitions=3)
    sales = app.topic("sales", Sale, key="name" if new else "who")
    said = app.topic("said", Said)

    class Customer(tr.Actor):
        days: tr.MapState[int, int]

        def note(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.days[event.at] = event.cents
            ctx.set_timer(event.at + 1_000, f"late:{event.at}")

        @tr.on_timer("late")
        def late(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, ctx.event_time))

    if new:

        class Newer(Customer):
            total: tuple[int, int] = (0, 0)
            shops: list[str] = tr.field(default_factory=list)

            @tr.process(sales)
            def sale(self, event: Sale, ctx: tr.Context[str]) -> None:
                cents = self.total[0] * 100 + self.total[1] + event.cents
                self.total = divmod(cents, 100)
                self.note(event, ctx)

        app.actor(name="Customer")(Newer)
    else:

        class Older(Customer):
            total: int = 0

            @tr.process(sales)
            def sale(self, event: Sale, ctx: tr.Context[str]) -> None:
                self.total += event.cents
                self.note(event, ctx)

        app.actor(name="Customer")(Older)
    return app


FILE = """
def by_name(actor, key, state):
    shop, name = key.split("/")
    state["total"] = divmod(state["total"], 100)
    state["shops"] = [shop]
    if name == {broken!r}:
        raise ValueError("no name")
    return name

"""
MERGE = """
def merge(actor, key, one, other):
    cents = sum(100 * each["total"][0] + each["total"][1] for each in (one, other))
    return {"total": divmod(cents, 100), "shops": sorted(one["shops"] + other["shops"])}
"""
SALES = [
    (f"{shop}/{name}", name, 10 * at, 7 * at)
    for at in range(1, 41)
    for shop in "ab"
    for name in ["Ada", "Bob", "ü", f"{shop}{at}"]
]
EVENTS = [Sale(who, name, at + (who[0] == "b"), cents) for who, name, at, cents in SALES]


@pytest.fixture
def life(tmp_path: Path) -> Any:
    made = Life(tmp_path, 3)
    made.plan = make_app(new=False).plan()
    prepare_log(made.log, made.plan, create_declared=True)
    made.log.append_all(outputs(EVENTS[:100], new=False))
    made.run()
    yield made
    made.log.close()


def outputs(events: list[Sale], *, new: bool) -> list[Output]:
    return [
        Output("sales", (one.name if new else one.who).encode(), msgspec.json.encode(one), one.at)
        for one in events
    ]


def rewrite(folder: Path, *, merge: bool = True, broken: str = "") -> Rewrite:
    (folder / "rekey.py").write_text(FILE.format(broken=broken) + (MERGE if merge else ""), "utf-8")
    return Rewrite.of(f"{folder / 'rekey.py'}:by_name")


@pytest.mark.parametrize("partitions", [3, 2])
def test_an_app_continues_with_other_keys_and_fields(life: Life, tmp_path: Path, partitions: int) -> None:
    log, uri = EmbeddedLog(tmp_path / "new"), str(tmp_path / "snapshots")
    life.log.append_all(outputs(EVENTS[100:110], new=False))  # the new code reads them
    reshape(make_app(new=True).plan(), life.log, log, uri, partitions, rewrite(tmp_path))
    life.log.close()
    app = make_app(new=True)
    app.partitions = partitions
    life.log, life.plan, life.stores = log, app.plan(), {}
    life.log.append_all(outputs(EVENTS[110:], new=True))
    totals: dict[str, int] = defaultdict(int)
    shops: dict[str, set[str]] = defaultdict(set)
    for one in EVENTS:
        totals[one.name] += one.cents
    for one in EVENTS[:100]:
        shops[one.name].add(one.who[0])
    life.run()
    (actor,) = life.plan.actors
    found, days = {}, 0
    for row, value in life.rows().items():
        parts = rows.read_state_row(row)
        days += parts.rest[:1] == b"m"
        if not parts.rest:
            found[parts.key.decode()] = actor.decode(value[rows.start_of_fields(value) :])
    assert {key: divmod(cents, 100) for key, cents in totals.items()} == {
        key: one.total for key, one in found.items()
    }
    assert {key: sorted(shops[key]) for key in totals} == {key: one.shops for key, one in found.items()}
    assert days == len(EVENTS)
    life.run(to_the_end=True)
    said = [
        msgspec.json.decode(one.value or b"", type=Said)
        for at in range(log.partitions("said"))
        for one in scan(log, "said", at)
    ]
    assert sorted((one.name, one.at) for one in said) == sorted((one.name, one.at + 1_000) for one in EVENTS)


def test_keys_that_fail_are_named_and_counted_and_nothing_is_done(life: Life, tmp_path: Path) -> None:
    new, uri, plan = EmbeddedLog(tmp_path / "new"), str(tmp_path / "snapshots"), make_app(new=True).plan()
    with pytest.raises(UsageError, match=r"2 keys failed, the first: .*ValueError: no name"):
        reshape(plan, life.log, new, uri, 3, rewrite(tmp_path, broken="Ada"))
    with pytest.raises(
        UsageError, match=r"3 keys failed, the first: .*it becomes 'ü', as '[ab]/ü' does"
    ) as refused:
        reshape(plan, life.log, new, uri, 3, rewrite(tmp_path, merge=False))
    assert "Add merge(actor, key, one, other)" in str(refused.value)
    assert "sales" not in new.topics()
    found = rewritten(plan, life.log, uri, rewrite(tmp_path))
    assert (found.failed, found.counts["Customer", "keys"], found.counts["Customer", "merged"]) == ([], 31, 3)
    with pytest.raises(UsageError, match="no function of a file"):
        Rewrite.of(f"{tmp_path / 'rekey.py'}:nothing")
    reshape(plan, life.log, new, uri, 3, rewrite(tmp_path))
    new.close()


def test_a_snapshot_of_another_request_is_not_taken(life: Life, tmp_path: Path) -> None:
    uri, file = str(tmp_path / "snapshots"), tmp_path / "add.py"
    file.write_text(
        "".join(
            f"def add_{n}(actor, key, state):\n    state['total'] += {n}\n    return key\n" for n in (1, 2)
        )
    )
    made = list[str]()
    targets = [EmbeddedLog(tmp_path / one) for one in ("one", "two")]
    given = [("add_1", "a", 0), ("add_1", "a", 0), ("add_1", "a", 1)]
    for name, code, at in given:
        rewrite = Rewrite.of(f"{file}:{name}", {"module app": code})
        made.append(reshape(life.plan, life.log, targets[at], uri, 3, rewrite)[0].id)
    assert made[0] == made[1] != made[2]
    for one in targets:
        one.close()
    digests = {
        Rewrite.of(f"{file}:{name}", {"module app": code}).digest
        for name, code in [("add_1", "a"), ("add_2", "a"), ("add_1", "b")]
    }
    assert len(digests) == 3


def test_entries_of_both_keys_are_not_lost(life: Life, tmp_path: Path) -> None:
    life.log.append_all(outputs([Sale("b/Ada", "Ada", EVENTS[0].at, 1)], new=False))
    life.run()
    plan = make_app(new=True).plan()
    (failed,) = rewritten(plan, life.log, str(tmp_path / "snapshots"), rewrite(tmp_path)).failed
    assert "and both have the same timers or entries" in failed
