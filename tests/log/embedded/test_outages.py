"""A full disk, a read-only file system, a folder one may not write: a clear error, nothing in halves, and it goes on."""

from __future__ import annotations

import pytest

from tests.state.outages import FULL, UNWRITABLE, run

COMMON = """
import os, pathlib, resource, subprocess, sys
from tailrace.core.errors import *
from tailrace.core.records import Output
from tailrace.log import *
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions

folder = pathlib.Path(sys.argv[1])
state = folder / "log"
T = TopicPartition("t", 0)

def opened(**options):
    log = EmbeddedLog(state, LogOptions(**options))
    log.create_topic("t", TopicSettings(1))
    return log

def refused(call, *says):
    try:
        call()
    except LogUnavailableError as error:
        assert any(word in str(error) for word in says), error
        assert "Nothing committed is lost" in str(error), error
        return error
    raise AssertionError("not refused")

def read(log):
    reader = log.reader({T: 0})
    found = []
    while (fetched := reader.fetch("t", 0, 1000)).records:
        found += [one.value for one in fetched.records]
    assert fetched.next_offset == len(found) == log.end_offset("t", 0)
    return found

def batch(number):
    return [b"%d of %d " % (one, number) + os.urandom(500) for one in range(300)]

def records(values):
    return [Output("t", b"k", value, 0) for value in values]
"""

FULL_WHILE_RUNNING = """
log = opened()
other = EmbeddedLog(state)
writer = log.writer("w")
outage(room=1 << 20)
expected, failed = [], 0
for number in range(100):
    values = batch(number)
    writer.append(records(values))
    try:
        writer.commit({T: number}, "g")
    except LogUnavailableError as error:
        assert "full" in str(error) or "size" in str(error), error
        assert "Nothing committed is lost" in str(error), error
        failed += 1
        writer.abort()
        assert read(log) == read(other) == read(EmbeddedLog(state)) == expected, "something of it can be seen"
        if failed == 3:
            break
    else:
        expected += values
        done = number
assert failed == 3 and expected
assert log.committed_offsets("g", [T]) == {T: done}

relief()
for number in range(10):
    values = batch(number)
    writer.append(records(values))
    writer.commit({T: number}, "g")
    expected += values
assert read(log) == read(other) == read(EmbeddedLog(state)) == expected
log.verify()
"""

FULL_WHILE_CLEANING = """
log = opened()
log.create_topic("c", TopicSettings(1, compacted=True))
C = TopicPartition("c", 0)
writer = log.writer("w")
for number in range(20):
    keys = [b"%d" % (one + 1_000 * number if one % 2 else one) for one in range(300)]
    writer.append([Output("c", key, os.urandom(500), 0) for key in keys])
    writer.commit()

def last(log):
    found, reader = {}, log.reader({C: 0})
    while records := reader.fetch("c", 0, 1000).records:
        found.update((one.key, one) for one in records)
    return found

expected = last(log)
outage(room=50_000)
error = refused(lambda: log.clean(), "full", "size")
assert "full" not in str(error) or "as much room as log.sqlite-wal is long" in error.hint
assert last(log) == last(EmbeddedLog(state)) == expected
relief()
done = log.clean()
assert done.bytes_after < 0.7 * done.bytes_before, done
assert last(log) == last(EmbeddedLog(state)) == expected
log.verify()
"""

FULL_AT_START = """
outage()
refused(opened, "full", "size")
refused(opened, "full", "size")
relief()
log = opened()
log.append("t", b"k", b"1", 0)
assert read(log) == [b"1"]
"""

UNWRITABLE_LATER = """
log = opened()
writer = log.writer("w")
writer.append(records([b"1"]))
writer.commit()
log.close()
outage()
log = EmbeddedLog(state)
assert read(log) == [b"1"], "reading needs no right to write"
refused(lambda: log.writer("w"), "read-only", "permission")
refused(lambda: log.create_topic("more", TopicSettings(1)), "read-only", "permission")
log.close()
relief()
log = opened()
log.append("t", b"k", b"2", 0)
assert read(log) == [b"1", b"2"]
"""

UNWRITABLE_AT_START = """
outage()
refused(opened, "read-only", "permission")
relief()
assert not state.exists() or not any(state.iterdir()), "something was left behind"
assert read(opened()) == []
"""


@pytest.mark.parametrize("outage", FULL)
def test_of_a_commit_that_finds_the_disk_full_nothing_is_visible_and_later_ones_work(outage) -> None:
    run(COMMON, FULL[outage], FULL_WHILE_RUNNING)


@pytest.mark.parametrize("outage", FULL)
def test_a_cleaning_that_finds_the_disk_full_leaves_everything_as_it_was(outage) -> None:
    run(COMMON, FULL[outage], FULL_WHILE_CLEANING)


@pytest.mark.parametrize("outage", FULL)
def test_a_disk_that_is_full_at_the_start_stops_this_start_and_no_later_one(outage) -> None:
    run(COMMON, FULL[outage], FULL_AT_START)


@pytest.mark.parametrize("program", [UNWRITABLE_LATER, UNWRITABLE_AT_START], ids=["later", "at the start"])
@pytest.mark.parametrize("outage", UNWRITABLE)
def test_a_folder_that_cannot_be_written_can_be_read_and_says_why_it_takes_nothing(outage, program) -> None:
    run(COMMON, UNWRITABLE[outage], program)
