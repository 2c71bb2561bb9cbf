"""A snapshot of some keys is no base of a whole one: all other keys would be gone, and nobody would know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.errors import SnapshotMismatchError
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Request
from tailrace.state.snapshots import Snapshots
from tests.history.rebuilding import lived, shops
from tests.history.rebuilding.lived import done, rebuilt, request

SHOPS = "tests.history.rebuilding.shops:app"


@pytest.mark.parametrize("order", ["tape", "canonical"])
def test_from_a_snapshot_of_some_keys_no_rebuild_of_others_goes_on(tmp_path: Path, order: str) -> None:
    lived.append(tmp_path, shops.sales(100), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    asked = str(tmp_path / "snapshots")
    _, part = done(tmp_path, SHOPS, keys=("shop-1", "shop-4"), order=order)

    def asks(*keys: str) -> Request:
        base = {"base": asked, "base_id": part.manifest.id, "order": order}
        return request(tmp_path, SHOPS, keys=keys, **base)

    for keys in ((), ("shop-1", "shop-2")):
        with pytest.raises(SnapshotMismatchError, match="holds the keys shop-1, shop-4 only"):
            rebuild(asks(*keys), LocalEngine(1))
    assert len(Snapshots(asked, part.manifest.app).list()) == 1
    if order == "canonical":
        rebuild(asks("shop-1", "shop-4"), LocalEngine(1))
        same = Snapshots(asked, part.manifest.app).open()
        assert same.manifest.keys == ("shop-1", "shop-4")
        assert [one.rows for one in rebuilt(same)] == [one.rows for one in rebuilt(part)]
