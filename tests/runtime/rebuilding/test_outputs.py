"""Outputs of a rebuild are those of the service: same bytes, same numbers, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.errors import TopicMismatchError
from tailrace.core.records import InputRecord
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.writer import EmbeddedWriter
from tailrace.runtime.apps import find_app
from tailrace.runtime.rebuilding import driver, publishing
from tailrace.runtime.rebuilding.driver import rebuild
from tailrace.runtime.rebuilding.engines import LocalEngine
from tailrace.runtime.rebuilding.publishing import MANIFEST, OutputsManifest, topics_of
from tailrace.runtime.scanning import scan
from tailrace.state.snapshots.arrow import parquet
from tests.runtime.rebuilding import lived
from tests.runtime.rebuilding.lived import TALLY, done, request


@pytest.fixture
def tally(tmp_path: Path) -> Path:
    for first in range(3):
        lived.serve_tallies(tmp_path, 20, 1, first_round=first)
    return tmp_path


def emitted(folder: Path, suffix: str = "", *, inbox: bool = False) -> dict[tuple[str, bytes], InputRecord]:
    """What is in the topics of the app, by topic and origin, without offsets."""
    plan = find_app(TALLY).plan()
    log = EmbeddedLog(folder / "log", create=False)
    try:
        found: dict[tuple[str, bytes], InputRecord] = {}
        for topic in [*topics_of(plan), *([plan.inbox_topic] if inbox and plan.inbox_topic else [])]:
            for number in range(log.partitions(f"{topic}{suffix}")):
                for one in scan(log, f"{topic}{suffix}", number):
                    if not one.headers:
                        continue  # an input
                    origin = topic, one.headers[-1][1]
                    assert origin not in found, "an output is there twice"
                    found[origin] = one._replace(offset=0)
        return found
    finally:
        log.close()


@pytest.mark.parametrize("split", [1, 3])
def test_outputs_as_parquet_are_those_of_the_service_in_their_order(tally: Path, split: int) -> None:
    report, snapshot = done(tally, outputs=f"parquet:{tally / 'out'}", split=split)
    folder = tally / "out" / "tally" / snapshot.manifest.id
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=OutputsManifest)
    assert {one.name for one in folder.iterdir()} == {MANIFEST, *(one.name for one in manifest.files)}
    found: dict[tuple[str, bytes], InputRecord] = {}
    for file in manifest.files:
        table = parquet.read_table(folder / file.name)
        assert table["number"].to_pylist() == list(range(file.rows))
        for row in table.set_column(5, "timestamp", table["timestamp"].cast("int64")).to_pylist():
            headers = tuple((one["key"], one["value"]) for one in row["headers"])
            assert headers[-1][1] == f"tally/{file.partition}/{row['number']}".encode()
            found[row["topic"], headers[-1][1]] = InputRecord(
                0, row["timestamp"], row["key"], row["value"], headers
            )
    assert found == emitted(tally, inbox=True)
    assert report.written == report.outputs == len(found) > 150


def test_outputs_in_topics_are_those_of_the_service_each_once_whenever_the_driver_dies(
    tally: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(tally, outputs="topic:-again")
    monkeypatch.setattr(publishing, "_AT_ONCE", 7)
    publish, commits = publishing.publish_outputs, 0

    class Killed(BaseException):
        pass

    def dying(*arguments: Any) -> None:
        nonlocal commits
        monkeypatch.setattr(EmbeddedWriter, "commit", counted)
        publish(*arguments)

    commit = EmbeddedWriter.commit

    def counted(self: EmbeddedWriter, *arguments: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits in (3, 8):
            raise Killed
        ends = commit(self, *arguments)
        if commits in (5, 12):
            raise Killed
        return ends

    monkeypatch.setattr(driver, "publish_outputs", dying)
    for _ in range(4):
        with pytest.raises(Killed):
            rebuild(asked, LocalEngine(1))
    report = rebuild(asked, LocalEngine(1))
    assert report.resumed
    assert emitted(tally, "-again") == emitted(tally)
    with pytest.raises(TopicMismatchError, match="is not empty"):
        rebuild(asked, LocalEngine(1))
