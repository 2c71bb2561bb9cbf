"""The simulator is deterministic, and strikes with everything it has. ``mutations`` shows that it notices what is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.testing.exploring.driving import LawBrokenError
from tests.proof.invariants import CommitObserver
from tests.proof.simulator import Simulator


class Sale(msgspec.Struct):
    shop: str
    at: int


class Total(msgspec.Struct):
    shop: str
    total: int


def shop_app() -> tr.App:
    app = tr.App("shop", partitions=2)
    sales = app.topic("sales", Sale, key="shop", event_time="at")
    totals = app.topic("totals", Total, key="shop")

    @app.actor
    class Shop(tr.Actor):
        total: int = 0

        @tr.process(sales)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.total += 1
            ctx.emit(totals, Total(event.shop, self.total))

    return app


def simulator(seed: int, **options: Any) -> Simulator:
    app = shop_app()
    sales = app.topics["sales"]
    inputs = [Sale(f"s{number % 5}", 1_000 + number) for number in range(40)]
    outputs = [Output("sales", sales.encode_key(one), sales.encode(one), one.at) for one in inputs]
    return Simulator(app.plan(), seed, outputs, **options)


def counts_go_up_by_one(observer: CommitObserver) -> None:
    """A law of this app: every total of a shop is one more than the one before."""
    last: Counter[str] = Counter()
    for of_task in observer.outputs:
        for topic, record in of_task:
            if topic == "totals":
                one = msgspec.json.decode(record.value or b"", type=Total)
                last[one.shop] += 1
                assert one.total == last[one.shop]


def test_a_seed_gives_one_run() -> None:
    one, same, other = simulator(3), simulator(3), simulator(4)
    for each in (one, same, other):
        each.run()
    assert one.trace == same.trace
    assert (one.report.faults, one.report.operations) == (same.report.faults, same.report.operations)
    assert one.observer.outputs == same.observer.outputs
    assert other.trace != one.trace


def test_it_strikes_with_everything_it_has_and_a_sound_service_stands_it() -> None:
    faults: Counter[str] = Counter()
    for seed in range(40):
        report = simulator(seed, check=counts_go_up_by_one).run()
        faults += report.faults
        assert report.replayed is not None
        assert report.replayed.records >= 40
        assert report.steps > 60
    assert set(faults) == {
        "kill", "unknown", "log away", "disk full", "zombie", "rebalance", "lost store", "duplicate",
        "compaction", "expired transaction", "log restart",
    }  # fmt: skip


def test_a_failure_names_its_seed_and_what_had_been_done() -> None:
    def never(observer: CommitObserver) -> None:
        if observer.commits > 2:
            raise LawBrokenError("three commits are too many")

    with pytest.raises(LawBrokenError, match="too many") as caught:
        simulator(11, check=never).run()
    (note,) = caught.value.__notes__
    assert note.startswith("seed 11\n")
    assert "polls" in note
