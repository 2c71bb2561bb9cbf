"""A log of the format before is moved into the present one: nothing is lost, and nothing is at another place.

``data/old-log`` was written by the last version with that format: two writers, aborts, a compacted topic that was cleaned twice,
retention, publications, deleted records and forgotten offsets, in eight small segments. ``data/old-log.json`` is what it read.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from tailrace.core.errors import CorruptLogError, ForeignLogError, LogUnavailableError, OldLogError
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded import database as database_
from tailrace.log.embedded import old_format as old_format_
from tailrace.log.embedded.database import DATABASE, OLD_LABEL, WAL
from tailrace.log.embedded.old_format import KEPT, upgrade

DATA = Path(__file__).parent / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(DATA / "old-log", tmp_path / "log")
    return tmp_path / "log"


def text(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def seen(log: EmbeddedLog) -> dict[str, Any]:
    places = [TopicPartition("plain", number) for number in (0, 1)]
    found: dict[str, Any] = {
        "topics": {name: list(settings) for name, settings in log.topics().items()},
        "places": {},
        "publications": sorted(
            ([topic, publisher, at] for (topic, publisher), at in log.publications().items()), key=str
        ),
        "offsets": {
            group: [[*place, at] for place, at in sorted(log.committed_offsets(group, places).items())]
            for group in ("group 0", "group 1", "group 2")
        },
        "order": [[*place, end] for name in ("plain", "kept") for place, end in log.commit_order(name)],
    }
    for name, settings in log.topics().items():
        for number in range(settings.partitions):
            place = TopicPartition(name, number)
            start, end = log.start_offset(*place), log.end_offset(*place)
            found["places"][f"{name}/{number}"] = [
                *(start, end),
                *read(log, place, start),
                [log.offset_at(*place, at) for at in range(0, 70_000, 7_000)],
            ]
    return found


def read(log: EmbeddedLog, place: TopicPartition, start: int) -> tuple[list[Any], list[Any]]:
    """All records of a partition, and what is published for it on the way."""
    reader = log.reader({place: start})
    records: list[Any] = []
    published: list[Any] = []
    while True:
        fetched = reader.fetch(*place, 3)
        records += [
            [
                *(one.offset, one.timestamp_ms, text(one.key), text(one.value)),
                [[name, text(value)] for name, value in one.headers],
            ]
            for one in fetched.records
        ]
        published.append([fetched.next_offset, [list(one) for one in reader.published(*place)]])
        if not fetched.records:
            return records, published


def test_an_old_log_is_refused_until_it_is_upgraded_and_reads_as_before_then(folder) -> None:
    with pytest.raises(OldLogError, match="tailrace log upgrade"):
        EmbeddedLog(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = upgrade(folder)
    assert (done.topics, done.bytes_left_out, done.kept) == (4, 0, folder / KEPT)
    log = EmbeddedLog(folder)
    log.verify()
    expected = json.loads((DATA / "old-log.json").read_text())
    found = json.loads(json.dumps(seen(log)))
    for name in expected["places"]:
        assert found["places"][name] == expected["places"][name], name
    assert found == expected
    assert done.kept
    kept = {path.name: path.read_bytes() for path in done.kept.iterdir()}
    assert kept.items() <= before.items()
    assert len(kept) == 16


def test_an_upgraded_log_goes_on(folder) -> None:
    upgrade(folder)
    log = EmbeddedLog(folder)
    position = log.ends(["plain"]).position
    end = log.end_offset("kept", 0)
    writer = log.writer("one")
    assert writer.epoch == 3, "the epochs go on, so an old holder stays fenced"
    assert log.append("kept", b"5", b"new", 0) == end
    log.clean(least_gain=0)
    log.verify()
    assert log.ends(["plain"]).position > position > 50
    with pytest.raises(LogUnavailableError, match="no log of an older format"):
        upgrade(folder)


@pytest.mark.parametrize("step", range(12))
def test_an_upgrade_that_is_interrupted_anywhere_is_run_again(folder, monkeypatch, step) -> None:
    class Kill(BaseException):
        pass

    left = step

    def strike(real):
        def struck(*arguments, **options):
            nonlocal left
            if left == 0:
                raise Kill
            left -= 1
            return real(*arguments, **options)

        return struck

    with monkeypatch.context() as patch:
        for module, name in ((database_, "make"), (old_format_, "put_in_place"), (database_, "opened")):
            patch.setattr(module, name, strike(getattr(module, name)))
        patch.setattr(Path, "rename", strike(Path.rename))
        with pytest.raises(Kill):
            upgrade(folder)
    try:
        upgrade(folder)
    except LogUnavailableError:
        assert (folder / DATABASE).exists()
    log = EmbeddedLog(folder)
    log.verify()
    assert json.loads(json.dumps(seen(log))) == json.loads((DATA / "old-log.json").read_text())


def test_an_incomplete_commit_at_the_end_is_left_out_and_said(folder) -> None:
    segment = max(folder.glob("*.segment"))
    with segment.open("ab") as file:
        file.write(b"FRAM" + bytes(10))
    assert upgrade(folder).bytes_left_out == 14


def test_a_damaged_old_log_is_left_as_it_is(folder) -> None:
    segment = sorted(folder.glob("*.segment"))[2]
    data = bytearray(segment.read_bytes())
    data[-200] ^= 1
    segment.write_bytes(data)
    before = {path.name: path.read_bytes() for path in folder.glob("0*")}
    with pytest.raises(CorruptLogError, match=segment.name):
        upgrade(folder)
    assert {path.name: path.read_bytes() for path in folder.glob("0*")} == before
    with pytest.raises(OldLogError):
        EmbeddedLog(folder)


def test_old_files_that_are_put_back_beside_a_log_that_went_on_are_refused(folder) -> None:
    upgrade(folder)
    log = EmbeddedLog(folder)
    log.append("kept", b"5", b"new", 0)
    log.close()
    for path in (folder / KEPT).iterdir():
        shutil.copy(path, folder / path.name)
    with pytest.raises(OldLogError, match="beside it"):
        EmbeddedLog(folder)
    with pytest.raises(LogUnavailableError, match="do not end at the same offsets"):
        upgrade(folder)
    (folder / OLD_LABEL).unlink()
    assert EmbeddedLog(folder).end_offset("kept", 0) == log.end_offset("kept", 0)


def old_process(folder: Path, program: str) -> subprocess.Popen[str]:
    """A process that runs until its input ends, as one of the older version would."""
    code = f"import sys\nfolder = sys.argv[1]\n{program}\nprint('ready', flush=True)\nsys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    "program",
    [
        "file = open(folder + '/000000000005-0001.segment', 'rb')",
        "from tailrace.log.embedded.claims import claim\nfrom pathlib import Path\nheld = claim(Path(folder), 'an/app 0')",
    ],
    ids=["a file is open", "a task is owned"],
)
def test_a_log_that_a_process_of_the_older_version_still_uses_is_not_upgraded(folder, program) -> None:
    before = {path.name for path in folder.iterdir()}
    process = old_process(folder, program)
    try:
        with pytest.raises(LogUnavailableError, match=f"in use by process {process.pid}.*Stop all services"):
            upgrade(folder)
        assert {path.name for path in folder.iterdir()} - {"owners", "lock"} == before - {"owners", "lock"}
    finally:
        process.communicate()
    assert upgrade(folder).topics


def test_a_process_that_opens_the_old_log_during_the_upgrade_stops_it_before_the_files_are_moved(
    folder, monkeypatch
) -> None:
    processes: list[subprocess.Popen[str]] = []
    real = old_format_._moved

    def moved(*args: Any) -> Any:
        done = real(*args)
        processes.append(old_process(folder, "file = open(folder + '/000000000005-0001.segment', 'rb')"))
        return done

    monkeypatch.setattr(old_format_, "_moved", moved)
    with pytest.raises(LogUnavailableError, match="in use by process"):
        upgrade(folder)
    processes[0].communicate()
    assert (folder / OLD_LABEL).exists()
    upgrade(folder)
    EmbeddedLog(folder).close()


def test_a_log_of_format_2_gets_the_digest_of_its_publications(folder: Path) -> None:
    upgrade(folder)
    log = EmbeddedLog(folder)
    before = seen(log)
    log._appender.checkpoint()
    log.close()
    connection = apsw.Connection(str(folder / DATABASE))
    state = next(connection.execute("SELECT identity, commits, digest FROM log"))
    connection.execute("ALTER TABLE log DROP COLUMN published")
    connection.execute("UPDATE log SET checksum = ?", (database_.checksum_of("log", state),))
    connection.pragma("user_version", 2)
    connection.close()
    shutil.rmtree(folder / KEPT)
    with pytest.raises(OldLogError, match="format 2"):
        EmbeddedLog(folder)
    assert upgrade(folder).kept is None
    log = EmbeddedLog(folder)
    assert seen(log) == before
    log.verify()
    log.close()
    with pytest.raises(LogUnavailableError, match="no log of an older format"):
        upgrade(folder)


@pytest.mark.parametrize("harm", ["cut off", "a copy over it", "no lock"])
def test_an_upgrade_changes_nothing_of_a_log_that_is_damaged_or_new(tmp_path: Path, harm: str) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("t", TopicSettings(1))
    log.copy_to(tmp_path / "copy")
    log.append("t", b"k", b"v", 0)
    log.close()
    if harm == "cut off":
        (tmp_path / "log" / DATABASE).write_bytes(b"")
    elif harm == "a copy over it":
        shutil.copy(tmp_path / "copy" / DATABASE, tmp_path / "log" / DATABASE)
    else:
        (tmp_path / "log" / "lock").unlink()
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").glob("log.sqlite*")}
    with pytest.raises((CorruptLogError, ForeignLogError, LogUnavailableError)):
        upgrade(tmp_path / "log")
    after = {path.name: path.read_bytes() for path in (tmp_path / "log").glob("log.sqlite*")}
    assert {name: after[name] for name in (DATABASE, WAL)} == {name: before[name] for name in (DATABASE, WAL)}
    if harm == "no lock":
        EmbeddedLog(tmp_path / "log").verify()
