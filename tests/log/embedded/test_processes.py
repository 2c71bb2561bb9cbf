"""Several processes on one log, killed and stopped for real: nothing lost, nothing twice, nothing in halves."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack

import apsw
import pytest

from tailrace.core.errors import FencedError, LogUnavailableError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.database import DATABASE
from tailrace.log.options import LogOptions
from tests.log.embedded.inside import before, checkpoint
from tests.log.embedded.processes import running
from tests.runtime.processes import wait_until

PLACES = [TopicPartition("t", number) for number in range(3)]
OPTIONS = LogOptions()

WORKER = """
name, size = arguments
log = EmbeddedLog(folder)
writer = log.writer(name)
at = TopicPartition(name, 0)
number = log.committed_offsets("g", [at]).get(at, 0)
say("owner", number)
while True:
    for partition in range(3):
        writer.append([Output("t", b"k", b"%s %d %d" % (name.encode(), number, one), number) for one in range(int(size))],
            partition)
    number += 1
    writer.commit({at: number}, "g")
    say(number)
"""


def batches(log: EmbeddedLog, size: int) -> dict[tuple[int, str], list[int]]:
    """Per partition and worker the batches that are there; each must be there whole, in order and in one piece."""
    reader = log.reader(dict.fromkeys(PLACES, 0))
    found: dict[tuple[int, str], list[int]] = {}
    for place in PLACES:
        records = []
        while (fetched := reader.fetch(*place, 1_000)).records:
            records += fetched.records
        assert [one.offset for one in records] == list(range(len(records)))
        words = [(one.value or b"").split() for one in records]
        assert len(words) % size == 0
        for begin in range(0, len(words), size):
            name, number, _ = words[begin]
            assert words[begin : begin + size] == [[name, number, b"%d" % one] for one in range(size)]
            found.setdefault((place.partition, name.decode()), []).append(int(number))
    return found


def test_workers_that_are_killed_at_any_moment_lose_and_repeat_nothing(tmp_path) -> None:
    dice, size = random.Random(7), 20
    log = EmbeddedLog(tmp_path, OPTIONS)
    log.create_topic("t", TopicSettings(3))
    acknowledged = {"x": 0, "y": 0}
    for _ in range(8):
        with ExitStack() as stack:
            workers = {name: stack.enter_context(running(WORKER, tmp_path, name, size)) for name in "xy"}
            for name, worker in workers.items():
                begun = int(worker.line().split()[1])
                # A kill may fall between the commit and its acknowledgement.
                assert begun - acknowledged[name] in (0, 1)
                acknowledged[name] = begun
            for name in dice.sample("xy", 2):
                for _ in range(dice.randrange(1, 12)):
                    acknowledged[name] = int(workers[name].line())
                workers[name].signal(signal.SIGKILL)
            for name, worker in workers.items():
                worker.ended()
                rest = [int(line) for line in worker.lines() if line.isdigit()]
                acknowledged[name] = max([acknowledged[name], *rest])
        found = batches(EmbeddedLog(tmp_path, OPTIONS), size)
        assert found == batches(log, size), "who follows sees what who opens anew sees"
        for (_, name), numbers in found.items():
            assert numbers == list(range(len(numbers)))
            at = TopicPartition(name, 0)
            assert log.committed_offsets("g", [at]) == {at: len(numbers)}
            assert len(numbers) - acknowledged[name] in (0, 1)
    log.verify()


def test_a_taken_over_worker_in_another_process_is_fenced_at_its_next_act(tmp_path) -> None:
    log = EmbeddedLog(tmp_path, OPTIONS)
    log.create_topic("t", TopicSettings(3))
    program = WORKER.replace("    say(number)", "    say(number)\n    if sys.stdin.readline() == '': break")
    with running(f"try:\n    {program.strip().replace(chr(10), chr(10) + '    ')}\nexcept FencedError: say('fenced')",
                 tmp_path, "x", 5) as worker:  # fmt: skip
        assert worker.line() == "owner 0"
        assert worker.line() == "1"
        owner = log.writer("x")
        worker.report("go on")
        assert worker.line() == "fenced"
        assert worker.ended() == 0
    owner.append([Output("t", b"k", b"mine", 0)], 0)
    owner.commit()
    assert log.end_offset("t", 0) == 6


HOLDER = """
from tailrace.log.embedded.writer import Batch, commit_batch

def batch():
    found = Batch()
    found.add({{TopicPartition("t", 0): [Output("t", b"k", b"half of a commit", 0)]}})
    return found

log = EmbeddedLog(folder)
with log._appender.turn() as changes:
    commit_batch(changes, batch(), offsets={{}}, group="", watermarks={{}}, publisher="")
    changes.connection.cache_flush()  # half of a commit is in the WAL
    say("holds")
    {how}
say("let go")
"""


@pytest.mark.parametrize("goes_on", [True, False])
def test_who_is_stopped_while_it_appends_is_named_and_its_half_commit_is_never_seen(
    tmp_path, goes_on
) -> None:
    log = EmbeddedLog(tmp_path, LogOptions(patience_s=0.3))
    log.create_topic("t", TopicSettings(3))
    stop = "os.kill(os.getpid(), signal.SIGSTOP)"
    with running(HOLDER.format(how=stop), tmp_path) as holder:
        assert holder.line() == "holds"
        begun = time.monotonic()
        for _ in range(2):
            with pytest.raises(
                LogUnavailableError, match=f"process {holder.process.pid}, which is stopped, holds"
            ):
                log.append("t", b"k", b"v", 0, partition=1)
        assert time.monotonic() - begun > 0.6
        assert holder.is_stopped()
        holder.signal(signal.SIGCONT if goes_on else signal.SIGKILL)
        assert log.append("t", b"k", b"v", 0, partition=1) == 0
        holder.ended()
    assert [log.end_offset("t", number) for number in range(3)] == [int(goes_on), 1, 0]
    log.verify()


def test_who_waits_for_a_busy_lock_in_vain_is_told_who_has_it(tmp_path) -> None:
    log = EmbeddedLog(tmp_path, LogOptions(patience_s=0.3))
    log.create_topic("t", TopicSettings(3))
    with running(HOLDER.format(how="time.sleep(60)"), tmp_path) as holder:
        assert holder.line() == "holds"
        with pytest.raises(LogUnavailableError, match=f"process {holder.process.pid} holds"):
            log.append("t", b"k", b"v", 0)
        assert log.end_offset("t", 0) == 0, "readers never wait"


def test_who_dies_holding_the_lock_frees_it_at_once(tmp_path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create_topic("t", TopicSettings(3))
    with running(HOLDER.format(how="os.kill(os.getpid(), signal.SIGKILL)"), tmp_path) as holder:
        assert holder.ended() == -signal.SIGKILL
    begun = time.monotonic()
    log.append("t", b"k", b"v", 0)
    assert time.monotonic() - begun < 30
    assert sum(log.end_offset("t", number) for number in range(3)) == 1


def test_a_child_that_was_forked_during_a_commit_does_not_hold_the_lock(tmp_path) -> None:
    log = EmbeddedLog(tmp_path, LogOptions(patience_s=20))
    log.create_topic("t", TopicSettings(3))
    how = "child = os.fork()\n    if not child: time.sleep(120)\n    say(child)\n    time.sleep(120)"
    with running(HOLDER.format(how=how), tmp_path) as holder:
        assert holder.line() == "holds"
        child = int(holder.line())
        try:
            holder.signal(signal.SIGKILL)
            holder.ended()
            assert log.append("t", b"k", b"v", 0, partition=1) == 0
        finally:
            os.kill(child, signal.SIGKILL)
    log.verify()


def test_who_is_stopped_while_it_reads_delays_nobody_and_a_warning_says_so(tmp_path, caplog) -> None:
    log = EmbeddedLog(tmp_path)
    log.create_topic("t", TopicSettings(3))
    program = """
log = EmbeddedLog(folder)
with log._view.moment() as rows:
    rows.topics()
    say("reads")
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    with running(program, tmp_path) as reader:
        assert reader.line() == "reads"
        wait_until(reader.is_stopped, "it is stopped")
        for number in range(80):
            assert log.append("t", b"k", bytes(900_000), 0, partition=0) == number
        assert "look for one that is stopped" in caplog.text
        assert reader.is_stopped()
    checkpoint(tmp_path)
    log.append("t", b"k", b"v", 0)
    pages, _ = apsw.Connection(str(tmp_path / DATABASE)).wal_checkpoint()
    assert pages < 20, "it begins again at its start"
    log.verify()


def test_processes_that_all_make_the_log_at_once_make_one(tmp_path) -> None:
    program = """
log = EmbeddedLog(folder / "log")
log.create_topic("t", TopicSettings(3))
for number in range(20):
    log.append("t", b"k", b"%d" % number, 0, partition=0)
say(log.end_offset("t", 0))
"""
    with ExitStack() as stack:
        processes = [stack.enter_context(running(program, tmp_path)) for _ in range(4)]
        ends = [int(one.line()) for one in processes]
    assert max(ends) == 80
    EmbeddedLog(tmp_path / "log").verify()


def test_a_take_over_that_comes_between_the_check_and_the_lock_still_fences(tmp_path) -> None:
    one, two = EmbeddedLog(tmp_path), EmbeddedLog(tmp_path)
    one.create_topic("t", TopicSettings(1))
    zombie = one.writer("x")
    zombie.append([Output("t", b"k", b"v", 0)])
    left = ["x"]
    at_the_end_of_the_check = before("ROLLBACK", lambda: left and two.writer(left.pop()))
    with at_the_end_of_the_check, pytest.raises(FencedError):
        zombie.commit()
    assert two.end_offset("t", 0) == 0
