"""A service whose declarations have changed: what it says at the start, and what a replay under the new code finds."""

from __future__ import annotations

import logging
from typing import Any, cast

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.store_cut import decode_store_cut
from tailrace.testing import MemoryLog

KEYS = [next(key for key in "abcd" if partition_of(key.encode(), 2) == number) for number in (0, 1)]


class Sale(msgspec.Struct):
    shop: str
    at: int
    cents: int


def plan_of(*, old: bool, fee: int = 0) -> Plan:
    """The old code has a list of notes and a map; the new one a list of names instead, and cents that may be None."""
    app = tr.App("shops", partitions=2)
    sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order=10)

    def sold(self: Any, event: Sale, ctx: tr.Context[str]) -> None:
        self.cents += event.cents + fee
        if old:
            self.notes.append("sold")
            self.by_cents[event.cents] = 1

    listed = "notes" if old else "names"
    annotations: dict[str, Any] = {"cents": int if old else int | None, listed: list[str]}
    if old:
        annotations["by_cents"] = tr.MapState[int, int]
    body = {
        "__module__": __name__,
        "__annotations__": annotations,
        "cents": 0,
        listed: tr.field(default_factory=list),
        "sold": tr.process(sales)(sold),
    }
    app.actor(cast(Any, type(tr.Actor))("Shop", (tr.Actor,), body))
    return app.plan()


class Service:
    """A log and two stores, on which one version of the code runs after the other."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.stores = [MemoryStore(), MemoryStore()]
        self.now_ms = 0

    def run(self, plan: Plan, *times: int) -> None:
        prepare_log(self.log, plan, create_declared=True)
        settings = PartitionSettings(commit_interval_ms=0)
        worker = Worker(
            plan,
            self.log,
            [0, 1],
            lambda number: self.stores[number],
            settings=WorkerSettings(partition=settings),
            clock=lambda: self.now_ms,
        )
        worker.start()
        for at in times:
            sales = [Sale(key, at, 5) for key in KEYS]
            self.log.append_all(
                [Output("sales", one.shop.encode(), msgspec.json.encode(one), at) for one in sales]
            )
            worker.turn()
        worker.leave()

    def shop(self, number: int = 0) -> dict[str, Any]:
        row = self.stores[number].get(rows.actor_prefix("Shop") + rows.escaped(KEYS[number].encode()))
        assert row is not None
        fields: dict[str, Any] = msgspec.msgpack.decode(row[rows.start_of_fields(row) :])
        return fields

    def compared(self, plan: Plan) -> ReplayReport:
        cuts = [decode_store_cut(store.cut or b"").core for store in self.stores]

        def live(number: int) -> list[LiveState]:
            return [LiveState("the store", self.stores[number], cuts[number], indexed=True)]

        return replay(plan, self.log, ReplayOptions(compare=True), live=live)


@pytest.fixture
def service() -> Service:
    service = Service()
    service.run(plan_of(old=True), 0, 10, 20)
    return service


def test_a_worker_names_a_field_that_is_no_longer_declared_once_at_its_start(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tailrace.worker"):
        service.run(plan_of(old=False), 30, 40)
    (said,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert said.getMessage() == (
        "Shop.notes (list[str]) is stored and no longer declared; its values are kept. "
        'If the field was renamed, give it its old name: tr.field(name="notes"). '
        "To delete the values: --drop-state Shop.notes."
    )
    kept = [vars(one)["kept"] for one in caplog.records if "kept" in vars(one)]
    assert kept == [["Shop.by_cents", "Shop.notes"]] * 2
    assert service.shop()["notes"] == ["sold"] * 3


def test_a_replay_does_not_mind_what_is_new_and_what_is_no_longer_declared(service: Service) -> None:
    service.run(plan_of(old=False), 30)
    assert service.shop() == {"cents": 20, "names": [], "notes": ["sold"] * 3}
    report = service.compared(plan_of(old=False))
    assert [str(one) for one in report.differences.shown] == []
    assert "the declarations have changed since the first commit" in " ".join(report.notes)
    assert report.compared == ["the store", "the changelog", "outputs"]


def test_a_replay_finds_a_value_that_differs_all_the_same(service: Service) -> None:
    service.run(plan_of(old=False), 30)
    report = service.compared(plan_of(old=False, fee=7))
    assert {one.kind for one in report.differences.shown} == {"state"}
    changes = {change.label: (change.was, change.is_) for change in report.differences.shown[0].changes}
    assert changes["cents"] == ("20", "48")
    assert changes["notes (not declared)"] == ("['sold', 'sold', 'sold']", "nothing")
