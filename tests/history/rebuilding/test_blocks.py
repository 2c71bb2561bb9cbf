"""What one unit hands to another: all of it, or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.errors import CorruptStateError
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter


def test_a_file_that_has_lost_its_end_is_found_wherever_it_ends(tmp_path: Path) -> None:
    place = tmp_path / "blocks"
    with BlockWriter(place) as writer:
        writer.write([b"a"])
        writer.write([b"b"])
    blocks = BlockReader[list[bytes]](place, list[bytes])
    assert list(blocks) == [[b"a"], [b"b"]]
    whole = place.read_bytes()
    for length in range(len(whole)):
        place.write_bytes(whole[:length])
        with pytest.raises(CorruptStateError):
            list(blocks)


def test_one_without_blocks_is_whole(tmp_path: Path) -> None:
    with BlockWriter(tmp_path / "blocks"):
        pass
    assert list(BlockReader[int](tmp_path / "blocks", int)) == []
