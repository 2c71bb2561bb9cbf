"""``tailrace ab``: how the table shows what only one of the versions declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.rebuilding import lived, shops
from tests.lab.in_process import comparison
from tests.lab.selling import version

SELLING = "tests.lab.selling:app"
SOLD = "self.cents += event.cents"


def test_entries_of_a_map_or_list_that_only_b_has_are_shown_as_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, shops.sales(60), {"sales": 2, "totals": 2})
    fields = "    tags: tr.MapState[str, int]\n    kept: tr.ListState[int]"
    takes = "if event.at == 1_500:\n            self.tags['new'] = 7\n            self.kept.append(8)"
    b = version(
        tmp_path,
        "collects",
        ("    count: int = 0", f"    count: int = 0\n{fields}"),
        (SOLD, f"{SOLD}\n        {takes}"),
    )
    _, keys, _ = comparison(monkeypatch, tmp_path, SELLING, b)
    assert [(one["field"], one["b"]) for one in keys] == [
        ("kept[0] (only in B)", "8"),
        ("tags['new'] (only in B)", "7"),
    ]
