"""An output lies where murmur2 of its key says, whether the task finds its partition by the instance or by the key."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.partition import Partition
from tailrace.runtime.preparing import prepare_log
from tailrace.state import MemoryStore
from tests.runtime.world import run_dry

PARTITIONS = 4


class Move(msgspec.Struct):
    who: str
    to: str
    at: int


def moves(*, fails: bool) -> tr.App:
    app = tr.App("moves", partitions=PARTITIONS)
    read = app.topic("moves", Move, key="who", event_time="at", out_of_order="1s", on_error="dead-letter")
    passing = app.topic("passing", Move, key="who", event_time="at")
    out = app.topic("out", Move, key="who")

    @app.actor
    class Mover(tr.Actor):
        count: int = 0

        @tr.process(read)
        def on_move(self, move: Move, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(out, move)
            if move.to:
                ctx.emit(out, Move(move.to, "", move.at))
                if fails and self.count % 3 == 0:
                    raise ValueError("undone, with what it has emitted")
            ctx.set_timer(move.at + 500, "later")

        @tr.on_timer("later")
        def on_later(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Move(ctx.key, "timer", ctx.event_time))

    @app.process(passing)
    def on_passing(move: Move, ctx: tr.Context[str]) -> None:
        ctx.emit(out, Move(move.who, "stateless", move.at))

    return app


@pytest.mark.parametrize("partitions_of_out", [PARTITIONS, 3])
@pytest.mark.parametrize("others", [0.0, 0.2])
def test_outputs_lie_where_their_keys_say(partitions_of_out: int, others: float, tmp_path: Path) -> None:
    random, app = Random(1), moves(fails=others > 0)
    plan = app.plan()
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        log.create_topic("out", TopicSettings(partitions_of_out))
        prepare_log(log, plan, create_declared=True)
        for at in range(20):
            some = [Move(f"k{random.randrange(40)}", "", at * 100 + n) for n in range(20)]
            for one in some:
                one.to = f"k{random.randrange(40)}" if random.random() < others else ""
            encoded = [Output("moves", one.who.encode(), msgspec.json.encode(one), one.at) for one in some]
            log.append_all(encoded)
        # A producer with another partitioner: an actor would refuse its record, a function without state does not.
        stray = Move("stray", "", 10)
        number = (partition_of(b"stray", PARTITIONS) + 1) % PARTITIONS
        log.append_all([Output("passing", b"stray", msgspec.json.encode(stray), 10)], number)
        for task in range(PARTITIONS):
            partition = Partition(plan, task, log, MemoryStore(), lambda: 10_000, lineage=b"l" * 16)
            partition.restore()
            run_dry(partition, 7)
            partition.commit()
            partition.close()
        found = [
            (number, record.key or b"")
            for number in range(partitions_of_out)
            for record in scan(log, "out", number)
        ]
    assert len(found) > 400
    assert b"stray" in {key for _, key in found}
    assert [one for one in found if one[0] != partition_of(one[1], partitions_of_out)] == []
