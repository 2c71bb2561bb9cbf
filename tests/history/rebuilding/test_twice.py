"""Code that is not deterministic is found by running it twice: the key, the event, the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.errors import UsageError
from tailrace.history.rebuilding.determinism import TwiceReport, rebuild_twice
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived, shops
from tests.history.rebuilding.lived import live, rebuilt, request

SHOPS = "tests.history.rebuilding.shops:app"


def twice(folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> TwiceReport:
    """Live it and rebuild it twice, with code that is wrong in some way."""
    monkeypatch.setattr(shops, "WRONG", wrong)
    monkeypatch.setenv("SHOPS_WRONG", wrong)
    lived.append(folder, shops.sales(100), {"sales": 2})
    lived.live_on(folder, SHOPS)
    return rebuild_twice(request(folder, SHOPS), lambda seed: LocalEngine(2, seed))


def first_sale(shop: str) -> int:
    """The offset of the first sale of a shop in its partition."""
    from tailrace.core.values.partitioner import partition_of

    sales = [one.key or b"" for one in shops.sales(100)]
    own = partition_of(shop.encode(), 2)
    return [key for key in sales if partition_of(key, 2) == own].index(shop.encode())


def test_an_order_that_comes_from_hashes_is_found_with_key_event_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = twice(tmp_path, monkeypatch, "sets")
    assert found.differs
    assert found.report is not None
    (one,) = found.shown
    assert (one.actor, one.key) == ("Shop", "'shop-3'")
    assert [change.label for change in one.changes] == ["seen"]
    assert one.since.startswith(f"since sales @{first_sale('shop-3')}, event time ")
    assert "(Shop.sold)" in one.since or "(sold)" in one.since
    assert found.outputs == []
    assert "seen" in "\n".join(found.lines())
    assert not list((tmp_path / "snapshots" / "shops").glob("_*"))
    with pytest.raises(UsageError, match="not written to topics"):
        rebuild_twice(request(tmp_path, SHOPS, outputs="topic:-x"), lambda seed: LocalEngine(1, seed))


def test_chance_in_what_is_emitted_is_found_though_no_state_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = twice(tmp_path, monkeypatch, "chance")
    assert found.shown == []
    (one,) = found.outputs
    assert (one.topic, one.key) == ("totals", "'shop-5'")
    (change,) = one.changes
    assert change.was != change.is_
    assert change.between("the first run", "the second") in "\n".join(found.lines())
    assert one.since.startswith(f"since sales @{first_sale('shop-5')}, event time ")


def test_code_that_is_deterministic_is_run_twice_without_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = twice(tmp_path, monkeypatch, "")
    assert not found.differs
    assert found.lines()[-1] == "run twice: no difference"
    assert found.report is not None
    assert not any("written" in line for line in found.lines()), "its outputs were only compared"
    snapshot = lived.opened(request(tmp_path, SHOPS), found.report)
    assert rebuilt(snapshot) == live(tmp_path, find_app(SHOPS).plan())
