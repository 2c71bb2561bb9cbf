"""Headers of cuts are read as they were written; one that is damaged is an error, never taken for an absent one."""

from __future__ import annotations

import pytest

from tailrace.core.errors import CorruptStateError
from tailrace.core.records import InputRecord
from tailrace.history.reading.cut_notes import cut_header, header_of


def test_headers_of_a_cut_are_read_beside_others_and_a_damaged_one_is_an_error() -> None:
    headers = (*cut_header("other", ["of", "another", "kind"]), *cut_header("left", {"orders": 7}))
    cut = InputRecord(7, 1_000, b"", b"", headers)
    assert header_of(cut, "left", dict[str, int]) == {"orders": 7}
    assert header_of(cut, "note", bytes) is header_of(None, "note", bytes) is None
    with pytest.raises(CorruptStateError, match="the header 'other' of a cut cannot be read"):
        header_of(cut, "other", bytes)
