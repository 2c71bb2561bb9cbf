"""``tailrace ab`` of an app whose actors send messages: first events compared with plain Python over the events."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.values.partitioner import partition_of
from tests.history.rebuilding import lived, shops
from tests.lab.in_process import comparison
from tests.lab.selling import version

_LEDGER = '''class Note(msgspec.Struct):
    """Of a sale."""

    at: int


@app.actor
class Ledger(tr.Actor):
    """Counts."""

    count: int = 0

    @tr.on_message
    def noted(self, note: Note, ctx: tr.Context[str]) -> None:
        """Count."""
        self.count += 1


@app.actor
class Shop('''


@pytest.mark.parametrize("sender", ["a", "b"])
def test_first_events_are_found_if_only_one_version_sends_messages(
    sender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs all partitions as one, the other one by one."""
    sales = shops.sales(120)
    lived.append(tmp_path, sales, {"sales": 2, "totals": 2})
    planted, shop_of = dict[str, int](), {one.timestamp_ms: one.key or b"" for one in sales}
    for at in sorted(shop_of)[40:]:
        planted.setdefault(shop_of[at].decode(), at)
    first = min(at for at, shop in shop_of.items() if shop == b"shop-0")
    assert planted.pop("shop-0") > first
    assert {partition_of(one.encode(), 2) for one in planted} == {0, 1}
    sold = "self.cents += event.cents"
    changed = f"{sold} + 1000 * (event.at in {sorted(planted.values())})"
    noted = f'{sold}\n        if event.shop == "shop-0":\n            ctx.send(Ledger, "all", Note(event.at))'
    sends = (("@app.actor\nclass Shop(", _LEDGER), (sold, noted))
    a = version(tmp_path, f"sold_{sender}", *(sends if sender == "a" else ()))
    b = version(tmp_path, f"resold_{sender}", *(sends if sender == "b" else ()), (sold, changed))
    report, keys, outputs = comparison(monkeypatch, tmp_path, a, b)
    assert report.order == "canonical"
    offsets = {one.timestamp_ms: one.offset for one in lived.read(tmp_path, "sales")}
    found = {one["key"]: one for one in keys if one["field"] == "cents"}
    assert len(keys) == len(found) + 1  # and the count of the ledger
    assert found.keys() == planted.keys()
    for row in (*found.values(), *outputs):
        place = row["first_topic"], row["first_offset"], round(row["first_time"].timestamp() * 1000)
        assert place == ("sales", offsets[planted[row["key"]]], planted[row["key"]])
