"""``tailrace ab`` of an app with a window."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.rebuilding import lived, shops
from tests.lab.in_process import comparison

WINDOWS = """
import msgspec
import tailrace as tr
from tailrace import agg, windows
from tests.lab.selling import Sale, Total

app = tr.App("windows", partitions=2)
sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order=10)
sums = app.window("sums", sales, windows.tumbling("400ms"), agg.total(lambda sale: sale.cents))
totals = app.topic("totals", Total, key="shop")

@app.process(sums)
def closed(event: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
    ctx.emit(totals, Total(ctx.key, event.value))
"""


def test_outputs_of_a_window_part_at_the_event_that_it_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, shops.sales(120), {"sales": 2, "totals": 2})
    a, b = tmp_path / "sums_a.py", tmp_path / "sums_b.py"
    a.write_text(WINDOWS, encoding="utf-8")
    b.write_text(WINDOWS.replace("sale.cents)", "sale.cents + (sale.at == 1_500))"), encoding="utf-8")
    report, keys, outputs = comparison(monkeypatch, tmp_path, f"{a}:app", f"{b}:app")
    sale = next(one for one in lived.read(tmp_path, "sales") if one.timestamp_ms == 1_500)
    assert (report.noise, keys) == ([], [])
    assert [(one["key"].encode(), one["time"].timestamp()) for one in outputs] == [(sale.key, 1.599)]
    assert [(one["first_topic"], one["first_offset"]) for one in outputs] == [("sales", sale.offset)]
