"""Writers that die at any point, and several at once: a reader sees whole snapshots or none."""

import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.state.snapshots import Snapshots, TaskEntry, write_task
from tests.runtime.processes import ROOT
from tests.state.snapshots.making import manifest_of, published, some_rows

# Line by line in, for each a line out. Imports are done once; each death is that of a process of its own.
COMMON = """
import os, signal, sys
from pathlib import Path
from tailrace.core.errors import SnapshotError
from tailrace.state.snapshots import Snapshots, TaskEntry, write_task
from tailrace.state.snapshots import arrow, catalogue, manifest, places, reading, writing
from tests.state.snapshots.making import manifest_of, published, some_rows

snapshots = Snapshots(sys.argv[1], "flights")

def publish(id, attempt, notes=()):
    draft = snapshots.begin(id, 1_000)
    files = write_task(draft.folder_uri, 0, attempt, some_rows().items())
    task = TaskEntry(0, b"cut", files=files)
    snapshots.publish(manifest_of(snapshots, id, 1_000, (task,), notes=notes))
"""

DYING = """
ours = {module.__file__ for module in (catalogue, manifest, places, reading, writing)}
lines = 0
arrow.pa.schema, arrow.compute.equal, arrow.filesystems.FileType, arrow.parquet.ParquetWriter  # imported now

def count(frame, event, argument):
    global lines
    if frame.f_code.co_filename not in ours:
        return None
    lines += event == "line"
    if lines == point:
        os.kill(os.getpid(), signal.SIGKILL)
    return count

for line in sys.stdin:
    point = int(line)
    child = os.fork()
    if not child:
        sys.settrace(count)
        publish("doomed", "a")
        sys.settrace(None)
        print(lines, flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        print("killed", flush=True)
"""

PUBLISHING = """
for line in sys.stdin:
    first, *rest = line.split()
    if first == "race":
        try:
            publish("raced", rest[0], (rest[0],))
            print("won", flush=True)
        except SnapshotError as error:
            assert "already published" in error.what
            print("lost", flush=True)
    else:
        for number in range(int(first)):
            published(snapshots, [some_rows(), some_rows(5, "X")])
        print("done", flush=True)
"""


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def report(self, line: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: object) -> str:
        self.report(line)
        return self.answer()


@contextmanager
def running(program: str, folder: Path) -> Generator[Program]:
    command = [sys.executable, "-c", COMMON + program, str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


def test_a_writer_that_dies_at_any_point_has_published_nothing_or_all(tmp_path: Path) -> None:
    rows = list(some_rows().items())
    snapshots = Snapshots(str(tmp_path), "flights")
    folder = tmp_path / "flights"
    with running(DYING, tmp_path) as writer:
        total = int(writer.ask(10**9))
        assert [list(snapshots.open().rows(0))] == [rows]
        outcomes = list[bool]()
        for point in sorted({*range(1, total, max(1, total // 25)), *range(total - 25, total + 1)}):
            shutil.rmtree(folder)
            assert writer.ask(point) == "killed"
            seen = snapshots.list()
            outcomes.append(bool(seen))
            if not seen:  # whoever takes over goes on with the draft that is there
                draft = snapshots.begin("doomed", 1_000)
                task = TaskEntry(0, b"cut", files=write_task(draft.folder_uri, 0, "b", rows))
                snapshots.publish(manifest_of(snapshots, draft.id, draft.created_ms, (task,)))
            snapshot = snapshots.open("doomed")
            assert snapshot.verify() == []
            assert list(snapshot.rows(0)) == rows
            snapshots.sweep(older_than_s=-1)
            named = {"manifest.json", *(file.name for file in snapshot.manifest.tasks[0].files)}
            assert {path.name for path in (folder / "doomed").iterdir()} == named
    assert outcomes == sorted(outcomes), "published once and for all"
    assert {*outcomes} == {False, True}


def test_leftovers_of_writers_that_died_are_swept_when_they_are_old(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path), "flights")
    whole = published(snapshots)
    draft = snapshots.begin()
    write_task(draft.folder_uri, 0, "a", some_rows().items())
    empty = snapshots.begin()
    write_task(str(tmp_path / "flights" / whole.id), 0, "late", some_rows(1).items())
    (tmp_path / "flights" / "_work").mkdir()
    assert snapshots.sweep(3_600) == []
    late = {f"{whole.id}/00000-{table}-late.parquet" for table in ("state", "timers")}
    assert {*snapshots.sweep(-1)} == {draft.id, empty.id, *late}
    assert snapshots.open().verify() == []
    assert {path.name for path in (tmp_path / "flights").iterdir()} == {whole.id, "_work"}


def test_several_publish_at_once_and_a_reader_sees_only_whole_snapshots(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path), "flights")
    each = 6
    with running(PUBLISHING, tmp_path) as one, running(PUBLISHING, tmp_path) as two:
        one.report(each)
        two.report(each)
        counts = [0]
        while counts[-1] < 2 * each:
            seen = snapshots.list()
            assert len(seen) >= counts[-1]
            counts.append(len(seen))
            for manifest in seen[-2:]:
                snapshot = snapshots.open(manifest.id)
                assert snapshot.verify() == []
                assert list(snapshot.rows(0)) == list(some_rows().items())
            assert one.process.poll() is two.process.poll() is None
        assert one.answer() == two.answer() == "done"


def test_of_several_that_publish_under_one_id_one_wins_and_the_others_know(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path), "flights")
    with running(PUBLISHING, tmp_path) as one, running(PUBLISHING, tmp_path) as two:
        for _ in range(20):
            one.report("race one")
            two.report("race two")
            answers = {"one": one.answer(), "two": two.answer()}
            assert sorted(answers.values()) == ["lost", "won"]
            (manifest,) = snapshots.list()
            assert answers[manifest.notes[0]] == "won"
            assert snapshots.open().verify() == []
            snapshots.delete(manifest.id)


@pytest.mark.parametrize("which", ["latest", "20"])
def test_a_reader_holds_what_it_opened_though_newer_ones_come(tmp_path: Path, which: str) -> None:
    snapshots = Snapshots(str(tmp_path), "flights")
    published(snapshots, [some_rows(3)])
    opened = snapshots.open(which)
    published(snapshots, [some_rows(4)])
    assert list(opened.rows(0)) == list(some_rows(3).items())
