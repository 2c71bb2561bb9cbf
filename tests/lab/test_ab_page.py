"""``tailrace ab``: the traces on its page, and limits without an answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.history.rebuilding import lived, shops
from tests.lab.in_process import comparison
from tests.lab.selling import version

SELLING = "tests.lab.selling:app"
SOLD = "self.cents += event.cents"


@pytest.fixture(scope="module")
def sold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a service that has run."""
    folder = tmp_path_factory.mktemp("sold")
    lived.append(folder, shops.sales(60), {"sales": 2})
    lived.live_on(folder, SELLING)
    return folder


def test_the_worst_keys_are_traced_in_both_versions_around_their_first_event(
    sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = version(
        sold, "traced", (SOLD, f"{SOLD}\n        if event.at == 1_500:\n            self.cents += 1000")
    )
    report, (row,), _ = comparison(monkeypatch, sold, SELLING, b, to=str(tmp_path / "out"))
    (traced,) = report.traces
    assert (traced.name, traced.key) == ("Shop", row["key"])
    firsts = [one for side in (traced.a, traced.b) for one in side if one.is_first]
    assert [f"sales @{row['first_offset']}" in one.lines[0] for one in firsts] == [True, True]
    one, other = (next(line for line in each.lines if "cents: " in line) for each in firsts)
    before, after = re.findall(r"\d+", one)
    assert other == f"    cents: {before} → {int(after) + 1000}"
    assert [one.lines for one in traced.a[:2]] == [one.lines for one in traced.b[:2]]
    assert not traced.a[0].is_first
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"cents: {before} → {int(after) + 1000}" in page


def test_a_limit_without_an_answer_does_not_cost_the_others_theirs(
    sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = version(sold, "limited", (SOLD, f"{SOLD} + 5"))
    file = tmp_path / "metrics.sql"
    file.write_text("-- name: none\nselect 0", encoding="utf-8")
    limits = ("none>1%", "keys>50%")
    report, _, _ = comparison(monkeypatch, sold, SELLING, b, metrics=str(file), limits=limits)
    assert report.exceeded == ["keys>50%"]
    (said,) = report.unanswered
    assert "'none>1%' is a share of none, and that is 0" in said
