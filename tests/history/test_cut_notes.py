"""Notes in the headers of cuts are read as they were written; one that is damaged is an error, never taken for an absent one."""

from __future__ import annotations

import pytest

from tailrace.core.errors import CorruptStateError
from tailrace.core.records import InputRecord
from tailrace.history.cut_notes import note_header, note_in, note_of
from tailrace.log.interface import TopicIds

OTHER = note_header("other", ["of", "another", "kind"])


def cut(*headers: tuple[str, bytes]) -> InputRecord:
    return InputRecord(7, 1_000, b"", b"", headers)


def test_a_note_is_read_as_it_was_written_beside_others() -> None:
    ids = TopicIds(b"log", {"orders": "id"})
    headers = (*OTHER, *note_header("topics", ids), *note_header("passed", {"orders": 7}))
    assert note_in(headers, "topics", TopicIds) == ids
    assert note_of(cut(*headers), "passed", dict[str, int]) == {"orders": 7}


def test_without_a_note_nothing_is_known() -> None:
    assert note_of(None, "passed", dict[str, int]) is None
    assert note_of(cut(), "passed", dict[str, int]) is None
    assert note_of(cut(*OTHER), "passed", dict[str, int]) is None


@pytest.mark.parametrize("data", [b"", b"\xc1", note_header("passed", ["orders"])[0][1]])
def test_a_damaged_note_is_not_taken_for_an_absent_one(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match="the note 'passed' of a cut cannot be read"):
        note_of(cut(("passed", data)), "passed", dict[str, int])
