"""Outputs of a rebuild are those of the service: same bytes, same numbers, each once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.errors import TopicMismatchError
from tailrace.core.records import CHANNEL, InputRecord, Output
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding import driver, output_files, publishing
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.publishing import MANIFEST, OutputsManifest, topics_of
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.writer import EmbeddedWriter
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots.arrow import parquet
from tests.history.rebuilding import lived, referring, shops
from tests.history.rebuilding.lived import TALLY, done, request

SHOPS = "tests.history.rebuilding.shops:app"


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


def test_outputs_as_parquet_are_those_of_the_service_in_their_order(tally: Path) -> None:
    report, snapshot = done(tally, outputs=f"parquet:{tally / 'out'}")
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


def test_refused_records_are_not_counted_as_replayed_and_have_the_letters_of_the_service(
    tmp_path: Path,
) -> None:
    app, bad = "tests.history.rebuilding.referring:lenient", [Output("orders", b"b", b"no order", 0)] * 3
    lived.append(tmp_path, [*referring.records(), *bad], {"prices": 1, "orders": 1})
    lived.live_on(tmp_path, app)
    letters = [one.headers for one in lived.read(tmp_path, "referring.dead-letters")]
    report, snapshot = done(tmp_path, app, outputs=f"parquet:{tmp_path / 'out'}")
    assert (report.events, report.replayed, report.refused) == (40, 40, 3)
    assert report.notes == []
    (file,) = (tmp_path / "out" / "referring" / snapshot.manifest.id).glob("*.parquet")
    written = [one for one in parquet.read_table(file).to_pylist() if "dead" in one["topic"]]
    assert [tuple((h["key"], h["value"]) for h in one["headers"]) for one in written] == letters


def test_a_driver_killed_while_it_names_the_files_leaves_nothing_about_for_who_goes_on(
    tally: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(path: Path, target: Path) -> Path:
        if target.name == MANIFEST:
            raise Killed
        return replace(path, target)

    asked, replace = request(tally, outputs=f"parquet:{tally / 'out'}"), Path.replace
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Path, "replace", killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # nobody is left to do it
        rebuild(asked, LocalEngine(1))
    (folder,) = (tally / "out" / "tally").iterdir()
    before = {one.name for one in folder.iterdir()}
    assert MANIFEST not in before
    assert any(MANIFEST in name for name in before), "it died elsewhere"
    assert rebuild(asked, LocalEngine(1)).resumed
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=OutputsManifest)
    assert {one.name for one in folder.iterdir()} == {MANIFEST, *(one.name for one in manifest.files)}


def test_outputs_in_topics_are_those_of_the_service_each_once_whenever_the_driver_dies(
    tally: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(tally, outputs="topic:-again")
    monkeypatch.setattr(output_files, "_READ_AT_ONCE", 7)
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
    with closing(EmbeddedLog(tally / "log", create=False)) as log:
        plan = find_app(TALLY).plan()
        assert {one for one in log.topics() if one.endswith("-again")} == {
            f"{name}-again" for name in topics_of(plan)
        }
        assert {"ticks-again", "counts-again"} & log.topics().keys() == {
            "counts-again"
        }  # no copy of the input
    monkeypatch.setattr(EmbeddedWriter, "commit", commit)
    monkeypatch.setattr(driver, "publish_outputs", publish)
    done(tally, outputs="topic:-undisturbed")
    for topic in followed(TALLY):
        assert lived.published(tally, f"{topic}-again") == lived.published(tally, f"{topic}-undisturbed")
        assert in_order(tally, f"{topic}-again") == in_order(tally, topic)
    said = [some for topic in followed(TALLY) for some in lived.published(tally, f"{topic}-again")]
    assert any(at > 0 for some in said for at, _, _ in some)
    with pytest.raises(TopicMismatchError, match="is not empty"):
        rebuild(asked, LocalEngine(1))


def followed(app: str) -> list[str]:
    """The topics whose watermarks an app publishes."""
    return sorted(one.name for one in find_app(app).plan().published if CHANNEL not in one.name)


def in_order(folder: Path, topic: str) -> list[list[InputRecord]]:
    log = EmbeddedLog(folder / "log", create=False)
    try:
        return [list(scan(log, topic, number)) for number in range(log.partitions(topic))]
    finally:
        log.close()


def test_without_a_tape_topics_say_how_far_their_tasks_had_come_and_depend_on_the_records_alone(
    tmp_path: Path,
) -> None:
    lived.append(tmp_path, shops.sales(3_000), {"sales": 2})
    ways: dict[str, dict[str, Any]] = {"-one": {}, "-other": {"processes": 2, "store": "memory"}}
    for suffix, options in ways.items():
        report, _ = done(tmp_path, SHOPS, outputs=f"topic:{suffix}", **options)
        assert report.order == "canonical"
    assert in_order(tmp_path, "totals-one") == in_order(tmp_path, "totals-other")
    said = lived.published(tmp_path, "totals-one")
    assert said == lived.published(tmp_path, "totals-other")
    for some, records in zip(said, in_order(tmp_path, "totals-one"), strict=True):
        assert [task for at, task, _ in some if at == 0] == [0, 1]
        assert len({at for at, _, _ in some}) > 2
        for number, record in enumerate(records):
            ours = [mark for at, _, mark in some if at <= number and mark is not None]
            assert min(ours) <= record.timestamp_ms
        last = {task: mark for _, task, mark in some}
        assert min(mark for mark in last.values() if mark is not None) > 20_000
