"""A disk that is full, a file system that is read-only, a folder one may not write: a clear error, and nothing lost."""

import pytest

from tests.state.outages import FULL, UNWRITABLE, run

COMMON = """
import os, pathlib, resource, subprocess, sys
from tailrace.core.errors import *
from tailrace.state import *

folder = pathlib.Path(sys.argv[1])
state = folder / "state"
OURS = StateIdentity("flights", 0)

def opened():
    return RocksStore(state, OURS, StateMemory(8 << 20))

def refused(call, *says):
    try:
        call()
    except StateUnavailableError as error:
        assert any(word in str(error) for word in says), error
        assert "Nothing committed is lost" in str(error), error
        return error
    raise AssertionError("not refused")

def batch(number):
    return {b"%d of %04d" % (n, number): os.urandom(100) for n in range(1000)}
"""

FULL_WHILE_RUNNING = """
store = opened()
model = {}
store.write(model, b"0")
outage(room=1 << 20)
try:
    for number in range(1, 10_000):
        rows = batch(number)
        store.write(rows, b"%d" % number)
        model |= rows
except StateUnavailableError as error:
    failure = error
assert "full" in str(failure) or "size" in str(failure), failure
assert "Nothing committed is lost" in str(failure)
assert number > 1
assert store.cut == b"%d" % (number - 1)
assert dict(store.rows()) == model, "what was written before must stay readable"

relief()
assert refused(lambda: store.write({b"later": b""}, b"later"), "full", "size") is failure, "a hole in the state"
store.close()

store = opened()
assert store.cut in (b"%d" % (number - 1), b"%d" % number)
if store.cut == b"%d" % number:
    model |= rows
assert dict(store.rows()) == model
for again in range(int(store.cut) + 1, number + 20):
    rows = batch(again)
    store.write(rows, b"%d" % again)
    model |= rows
store.close()
store = opened()
assert dict(store.rows()) == model
assert store.cut == b"%d" % again
"""

UNWRITABLE_AT_START = """
outage()
refused(opened, "read-only", "permission")
relief()
assert not state.exists() or not any(state.iterdir()), "something was left behind"

store = opened()
store.write({b"a": b"1"}, b"1")
store.close()
outage()
refused(opened, "read-only", "permission")
relief()
store = opened()
assert (store.cut, dict(store.rows())) == (b"1", {b"a": b"1"})
store.write({b"a": b"2"}, b"2")
"""

FULL_AT_START = """
outage()
refused(opened, "full", "size")
refused(opened, "full", "size")
relief()
store = opened()
assert store.cut is None
store.write({b"a": b"1"}, b"1")
store.close()

outage()
refused(opened, "full", "size")
refused(opened, "full", "size")
relief()
store = opened()
assert (store.cut, dict(store.rows())) == (b"1", {b"a": b"1"})
"""


@pytest.mark.parametrize("outage", FULL)
def test_a_full_disk_ends_the_store_at_its_last_cut_from_which_it_goes_on_with_room_again(outage) -> None:
    run(COMMON, FULL[outage], FULL_WHILE_RUNNING)


@pytest.mark.parametrize("outage", FULL)
def test_a_disk_that_is_full_at_the_start_stops_this_start_and_no_later_one(outage) -> None:
    run(COMMON, FULL[outage], FULL_AT_START)


@pytest.mark.parametrize("outage", UNWRITABLE)
def test_a_folder_that_cannot_be_written_is_refused_and_opens_unharmed_when_it_can(outage) -> None:
    run(COMMON, UNWRITABLE[outage], UNWRITABLE_AT_START)
