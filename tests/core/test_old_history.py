"""Histories of format 1, whose tasks had one watermark: gone on with and replayed where that was the same, else refused.

The bytes were written by the version before, for the app below: three records, a clock reading, the end of input.
"""

from __future__ import annotations

from base64 import b85decode
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.errors import OldHistoryError
from tailrace.core.records import InputRecord
from tailrace.history.app_topics import prepare_topics
from tailrace.runtime.partition import Partition
from tailrace.state import MemoryStore
from tailrace.state.store_cut import FORMAT, decode_store_cut
from tailrace.testing import MemoryLog

TAPES = [
    "oB;rn0007zmI43(0002Ym64@xZ**mIkpcjrF_WxgaCvlSZ*CwnE-^8tFfKAOE-<5EZh61",
    "oB;uq0Zjk^0+5yj0s;U40L=-*z`(%3z`y",
    "oB;xs0ssL700oei1Oo#A007MmtiZs)z`(!",
]
CUT = "o&lt5WpH!=!~<_^WPzn_Z**mI1c9Y)Z**mI%?ZPhkbunz!%db10s;U400N)"
ROWS = {
    "Yjb00Wo=;": "dm?6Ua&2LBB04cFB4J~6Z*p@YI(s5QWo&FBI(s5(WqBexdm?LTZe$`lB6D<dB7H0(W@%+?WOE`qTYDmIVQpn1IwEc&EFyGyaAhJodm?LTZe$`lB57`PB7J>bEFy4Wb95p)TU~v9eE",
    "b3$coYye>Z00": "5P_j?0s",
    "b3$coYye^a00": "5P_j?0R",
    "b3$coYye{b00": "5rLs@0R",
    "b3$coYye{b0CWIua%pa7": "lg$mR&($Gz8Qz<}3;+",
}
OUTPUTS = [(b"b", 1_150), (b"a", 1_900), (b"c", 3_500)]


class Note(msgspec.Struct, frozen=True):
    key: str
    at: int


EVENTS = [Note("a", 100), Note("b", 150), Note("a", 900), Note("c", 2_500)]
RECORDS = [InputRecord(n, 0, one.key.encode(), msgspec.json.encode(one)) for n, one in enumerate(EVENTS)]


def app(*, steps: bool = False) -> tr.App:
    """The app that wrote it; with ``steps`` its notes come through a function and a topic of the app."""
    made = tr.App("kept", partitions=1)
    notes = made.topic("notes", Note, key="key", event_time="at")
    taken = made.topic("taken", Note, key="key", event_time="at") if steps else notes
    rings = made.topic("rings", Note, key="key")
    if steps:

        @made.process(notes)
        def hand_on(event: Note, ctx: tr.Context[str]) -> None:
            ctx.emit(taken, event)

    @made.actor
    class Bell(tr.Actor):
        n: int = 0

        @tr.process(taken)
        def take(self, event: Note, ctx: tr.Context[str]) -> None:
            self.n += 1
            ctx.set_timer(event.at + 1_000, "ring")

        @tr.on_timer("ring")
        def ring(self, ctx: tr.Context[str]) -> None:
            ctx.emit(rings, Note(ctx.key, ctx.event_time))

    return made


def stored() -> MemoryStore:
    """The state of the old commit, with the index that goes with its rows."""
    store = MemoryStore()
    held = {b85decode(row): b85decode(value) for row, value in ROWS.items()}
    index: dict[bytes, bytes | None] = {}
    for row, value in held.items():
        index |= rows.derived_index_rows(row, None, value)
    store.write({**held, **index}, b85decode(CUT))
    return store


def test_a_task_goes_on_from_an_old_cut_where_all_operators_have_the_same_sources() -> None:
    plan = app().plan()
    task = Task(plan, 0, stored(), b85decode(CUT), settings=TaskSettings(timezones="any"))
    assert task.watermark == 2_499
    assert task.watermarks.of_operator == [2_499]
    task.finish(0)
    assert [(one.key, one.timestamp_ms) for one in task.take_outputs()] == OUTPUTS[-1:]
    assert tape.decode_cut(task.commit_batch().cut).format == tape.FORMAT


def test_an_old_tape_is_replayed_the_end_of_input_included() -> None:
    plan, made = app().plan(), list[Any]()
    task = Task(
        plan, 0, MemoryStore(), lineage=b"old", settings=TaskSettings(timezones="any"), replaying=True
    )
    replay = Replay(task, lambda _, start, stop: RECORDS[start:stop], any_environment=True)
    for data in TAPES:
        record = tape.decode_tape(b85decode(data))
        assert record.format == 1
        replay.take(record)
        made += task.take_outputs()
        task.put_off()
    assert [(one.key, one.timestamp_ms) for one in made] == OUTPUTS


def test_where_actors_have_sources_of_their_own_an_old_history_is_refused_with_the_ways_on() -> None:
    plan = app(steps=True).plan()
    with pytest.raises(OldHistoryError, match="one watermark") as refused:
        Task(plan, 0, stored(), b85decode(CUT))
    assert "--order canonical" in refused.value.hint
    task = Task(plan, 0, MemoryStore(), lineage=b"old", replaying=True)
    replay = Replay(task, lambda _, start, stop: RECORDS[start:stop], any_environment=True)
    with pytest.raises(OldHistoryError):
        replay.take(tape.decode_tape(b85decode(TAPES[0])))


def test_a_store_with_the_index_of_format_1_is_filled_anew_from_the_changelog() -> None:
    plan, log = app().plan(), MemoryLog()
    prepare_topics(log, plan, create_declared=True)
    for one in RECORDS:
        log.append("notes", one.key, one.value, 0)

    def restored(store: MemoryStore) -> Partition:
        partition = Partition(plan, 0, log, store, lambda: 0, lineage=b"old")
        partition.restore()
        return partition

    store = MemoryStore()
    partition = restored(store)
    partition.poll()
    partition.commit()
    partition.close()
    assert store.cut is not None
    wanted = dict(store.rows())
    old, found = MemoryStore(), decode_store_cut(store.cut)
    kept: dict[bytes, bytes | None] = {row: value for row, value in wanted.items() if not rows.is_local(row)}
    # As it was: time before actor.
    kept[rows.INDEX + b"\0" + rows.time_bytes(3_500) + b"Bell\0c\0\0nring"] = b""
    old.write(kept, msgspec.structs.replace(found, format=FORMAT - 1).encode())
    again = restored(old)
    assert dict(old.rows()) == wanted
    again.close()
