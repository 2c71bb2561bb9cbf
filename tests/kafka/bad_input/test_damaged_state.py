"""A damaged state folder is set aside, and the state comes back from the changelog."""

from __future__ import annotations

from pathlib import Path

from tailrace.runtime.states import States
from tests.kafka.bad_input.shop import serving


def test_a_damaged_folder_is_set_aside_and_restored_from_the_changelog(
    kafka_url: str, tmp_path: Path, caplog
) -> None:
    with serving(kafka_url, open_state=States(tmp_path, "shop").take) as shop:
        shop.order(20)
        shop.work()
        shop.stop()
        damaged = [path for path in tmp_path.rglob("*") if path.is_file() and "MANIFEST" in path.name]
        for path in damaged:
            path.write_bytes(b"\xff" * path.stat().st_size)
        assert damaged
        shop.order(20)
        shop.work()
        assert shop.counts() == {f"k{n}": 8 for n in range(5)}
        assert "restored from the log" in caplog.text
        assert sorted(path.name for path in tmp_path.glob("*.damaged")) == ["0.damaged", "1.damaged"]
