"""``tailrace ab`` of operators whose results depend on an order, and of those that feed each other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import ReplayDivergedError
from tailrace.core.records import Output
from tests.history.rebuilding import lived
from tests.lab.in_process import comparison
from tests.lab.selling import Sale

MERGING = """
import msgspec
import tailrace as tr
from tests.lab.selling import Sale, Total

app = tr.App("merging", partitions=1)
sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order=60_000)
returned = app.topic("returned", Sale, key="shop", event_time="at", out_of_order=60_000)
totals = app.topic("totals", Total, key="shop")

@app.actor
class Shop(tr.Actor, order="ORDER"):
    last: int = 0
    CIRCLE

    @tr.process(sales, returned)
    def took(self, event: Sale, ctx: tr.Context[str]) -> None:
        self.last = event.cents + MORE
"""
CIRCLE = """again: int = 0

    @tr.on_message
    def told(self, message: Total, ctx: tr.Context[str]) -> None:
        self.again += message.cents
        if message.cents:
            ctx.send(Shop, ctx.key, Total(ctx.key, message.cents - 1))
"""


def merging(folder: Path, name: str, *, order: str = "arrival", more: int = 0, circle: str = "") -> str:
    (file := folder / f"{name}.py").write_text(
        MERGING.replace("ORDER", order).replace("CIRCLE", circle).replace("MORE", str(more)), encoding="utf-8"
    )
    return f"{file}:app"


def merged(folder: Path, app: str) -> None:
    """A service that gets the returns of three shops after all sales; those of the first shop happened before."""
    for topic, times in (("sales", (15_000, 15_000, 15_000)), ("returned", (10_000, 20_000, 20_000))):
        sales = [Sale(f"shop-{one}", at, at) for one, at in enumerate(times)]
        some = [Output(topic, one.shop.encode(), msgspec.json.encode(one), one.at) for one in sales]
        lived.append(folder, some, {"sales": 1, "returned": 1} if topic == "sales" else {})
        lived.live_on(folder, app, ends=False)


def test_what_order_alone_changes_is_the_noise_of_operators_on_arrival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for order, noise in (("arrival", 1), ("event-time", 0)):
        folder = tmp_path / order
        folder.mkdir()
        name = f"merging_{order.replace('-', '_')}"
        a = merging(tmp_path, name, order=order)
        merged(folder, f"{name}:app")
        report, keys, _ = comparison(monkeypatch, folder, a, a)
        assert (report.order, keys) == ("stages", [])
        said = ["1 key of A differs by the order of arrival alone (Shop)"]
        assert report.noise == said[:noise]
        measured = "what the service has stored" if noise else "a second run of A over 6 records"
        assert report.noise_measured.startswith(measured)
    other = merging(tmp_path, "merging_not_run", more=1)
    report, keys, _ = comparison(monkeypatch, tmp_path / "arrival", other, other)
    assert [one.rpartition(": ")[2] for one in report.noise] == [
        "A is not the code that ran, or it is not deterministic"
    ]


def test_an_app_with_a_circle_is_compared_along_the_tape_if_the_results_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    a, b, c = (
        merging(tmp_path, f"circling_{number}", more=number // 2, circle=CIRCLE) for number in range(3)
    )
    merged(tmp_path, "circling_0:app")
    report, keys, outputs = comparison(monkeypatch, tmp_path, a, b)
    assert (report.order, report.why) == ("tape", "operators feed each other, so there are no stages")
    assert (report.noise, keys, outputs) == ([], [], [])
    with pytest.raises(
        ReplayDivergedError, match="only versions with the results of the service can be compared"
    ):
        comparison(monkeypatch, tmp_path, a, c)
