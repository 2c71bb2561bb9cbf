"""What one round hands to the next: all of it, or an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.errors import CorruptStateError
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter


def test_a_file_that_has_lost_its_end_is_found_wherever_it_ends(tmp_path: Path) -> None:
    place = tmp_path / "blocks"
    with BlockWriter(place):
        pass
    assert list(BlockReader[int](place, int)) == [], "one without blocks is whole"
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


def test_a_block_that_was_altered_is_found(tmp_path: Path) -> None:
    place = tmp_path / "blocks"
    with BlockWriter(place) as writer:
        writer.write([b"a" * 1_000])
        writer.write([b"b"])
    data = bytearray(place.read_bytes())
    data[-14] ^= 1  # of the last block; what is behind it is the end
    place.write_bytes(data)
    blocks = iter(BlockReader[list[bytes]](place, list[bytes]))
    assert next(blocks) == [b"a" * 1_000]
    with pytest.raises(CorruptStateError, match="does not fit its checksum"):
        next(blocks)
