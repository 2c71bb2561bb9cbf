"""A state folder that is full, of another task or ahead of its log, under a running partition: nothing is lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.errors import ForeignStateError
from tailrace.core.storage import Store
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore, RocksStore, StateIdentity
from tailrace.state.store_cut import decode_store_cut
from tailrace.testing.memory_log import MemoryLog
from tests.proof.apps import Variant, build
from tests.proof.first_runs import replayed
from tests.proof.operations import Event
from tests.proof.programs import Op
from tests.proof.runs import ALL, LINEAGE
from tests.proof.seeds import START_MS

MODEL = build(Variant(1, 1, "handle", 500, "events", "dead-letter-all", messages=False, lean=False))
PLAN = MODEL.app.plan()
SETTINGS = PartitionSettings(commit_interval_ms=0)


def filled_log(events: int = 60) -> MemoryLog:
    log = MemoryLog()
    prepare_topics(log, PLAN, create_declared=True)
    topic = MODEL.topics[0]
    for number in range(events):
        program = (
            Op("put", number % 5, 3),
            Op("timer", number % 6, 500, (Op("emit", 1),)),
            Op("append", number),
        )
        event = Event(f"k{number % 7}", START_MS + 100 * number, program)
        log.append(topic.name, topic.encode_key(event), topic.encode(event), event.at)
    return log


def partition_on(log: MemoryLog, store: Store) -> Partition:
    partition = Partition(PLAN, 0, log, store, lambda: 5_000_000, lineage=LINEAGE, settings=SETTINGS)
    partition.restore()
    return partition


def results(log: MemoryLog) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in log.read("results")]


def finished(log: MemoryLog, store: Store) -> None:
    """Read everything, and hold it against a run that had no trouble, and against its own replay."""
    partition = partition_on(log, store)
    while partition.poll(7):
        pass
    partition.commit()
    tapes = [record.value or b"" for record in log.read(PLAN.tape_topic)]
    again = replayed(PLAN, 0, tapes, {("events", 0): log.read("events")}, Random(1))
    assert again.state() == {row: value for row, value in store.scan(*ALL) if not rows.is_local(row)}
    partition.revoke()
    clean = filled_log()
    calm = partition_on(clean, MemoryStore())
    while calm.poll(1000):
        pass
    calm.revoke()
    assert results(log) == results(clean)


def test_rows_of_another_task_in_a_folder_of_this_one_are_refused_by_its_path(tmp_path: Path) -> None:
    log, identity = filled_log(), StateIdentity(PLAN.app, 0)
    partition = partition_on(log, RocksStore(tmp_path / "own", identity))
    partition.poll(20)
    partition.revoke()
    store = RocksStore(tmp_path / "own", identity)
    assert store.cut is not None
    held = decode_store_cut(store.cut)
    assert held.core is not None
    core = msgspec.structs.replace(tape.decode_cut(held.core), partition=1)
    store.write({}, msgspec.structs.replace(held, core=tape.encode(core)).encode())
    with pytest.raises(ForeignStateError, match=re.escape(str(tmp_path / "own"))):
        partition_on(log, store)
    store.close()


def test_state_that_has_seen_more_than_the_log_holds_is_restored_from_the_log(tmp_path: Path) -> None:
    identity = StateIdentity(PLAN.app, 0)
    partition = partition_on(filled_log(), RocksStore(tmp_path / "state", identity))
    partition.poll(20)
    partition.revoke()
    finished(filled_log(), RocksStore(tmp_path / "state", identity))


FULL_DISK = """
import pathlib, resource, sys
from tailrace.core.errors import StateUnavailableError
from tailrace.runtime.lifecycle import State
from tests.proof.test_state_folders import *

log, identity, folder = filled_log(), StateIdentity(PLAN.app, 0), pathlib.Path(sys.argv[1])
partition = partition_on(log, RocksStore(folder, identity))
partition.poll(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))
try:
    while partition.poll(1):
        pass
except StateUnavailableError as error:
    assert partition.state is State.FAILED
else:
    raise AssertionError("the disk was never full")
try:
    partition_on(log, RocksStore(folder, identity)).poll(1)
except StateUnavailableError:
    pass
else:
    raise AssertionError("still full, and not told")
partition.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
finished(log, RocksStore(folder, identity))
print("resumed")
"""


def test_on_a_full_disk_the_partition_ends_and_with_room_again_it_resumes_without_loss(
    tmp_path: Path,
) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path / "state"],
        cwd=root,
        env={
            "PYTHONPATH": f"{root}:{root / 'framework'}",
            "PATH": "/usr/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "resumed\n", done.stderr
