"""A topic of dead letters that was deleted begins with the same ids again. Records that were redriven for the old letters are not taken for
those of the new ones: each note says from which offset on its record is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tailrace.core.engine.redriven import redriven_header
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.names import dead_letters_of, redriven_of
from tailrace.core.records import Output
from tailrace.history.dead_letters.handled import check_not_redriven_since
from tailrace.history.dead_letters.letters import Note
from tailrace.history.dead_letters.outcomes import offsets_of
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots import Manifest, TaskEntry

APP, LETTERS = "shop", "shop.dead-letters"
NOTES = {
    "0-0": Note("orders", 0, 4, (0, 3)),
    "0-1": Note("orders", 0, 1, (0, 0)),
    "0-2": Note("orders", 0, 1, (0, 3)),
}


def redriven(letter: str) -> Output:
    return Output("orders", b"k", b"", 1, (redriven_header(LETTERS, letter, (0, 3)),))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """Offset 1 was redriven for an old letter 0-0, and 2 for the letter 0-1."""
    found = EmbeddedLog(tmp_path)
    for topic in ("orders", dead_letters_of(APP), redriven_of(APP)):
        found.create_topic(topic, TopicSettings(1))
    plain = Output("orders", b"k", b"", 1)
    found.append_all([plain, redriven("0-0"), redriven("0-1"), plain])
    found.append_all(
        Output(redriven_of(APP), id_.encode(), msgspec.json.encode(note), 1) for id_, note in NOTES.items()
    )
    yield found
    found.close()


def test_where_a_redriven_record_is(log: EmbeddedLog) -> None:
    assert offsets_of(log, APP, NOTES) == {"0-1": 2}
    log.append_all([redriven("0-0")])
    assert offsets_of(log, APP, NOTES) == {"0-0": 4, "0-1": 2}


def test_what_was_redriven_since_a_snapshot(log: EmbeddedLog) -> None:
    entry = TaskEntry(0, b"", handled={"orders": [3]})
    manifest = Manifest(id="s", app=APP, version="1", partitions=1, created_ms=1, tasks=(entry,))
    check_not_redriven_since(log, manifest)
    log.append_all([redriven("0-0")])
    with pytest.raises(SnapshotMismatchError, match="offset 4 of 'orders' partition 0 is a redriven record"):
        check_not_redriven_since(log, manifest)
