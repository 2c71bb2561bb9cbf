"""Every commit has an identity that chains to the one before; a replay comes to the same, and follows one
chain only.
"""

from __future__ import annotations

import pytest

from tailrace.core.engine import tape
from tailrace.core.engine.replay import Limit, Replay
from tailrace.core.engine.task import Task
from tailrace.core.errors import ReplayDivergedError
from tailrace.history.provenance.judging import new_nonce
from tailrace.history.reading.stretches import source
from tailrace.state import MemoryStore
from tests.runtime.world import LINEAGE, World, run_dry


def lived(*, starts: int = 2, amount: int = 1) -> World:
    """Some commits, by several owners one after the other."""
    world = World(commit_interval_ms=0)
    for start in range(starts):
        partition = world.running()
        world.sell(*((f"s{at % 3}", 50 * at, amount) for at in range(10 * start, 10 * start + 10)))
        run_dry(partition, 4)
        partition.revoke()
    return world


def tapes(world: World) -> list[tape.TapeRecord]:
    return [tape.decode_tape(one.value or b"") for one in world.log.read("shop.tape")]


def again(world: World, limit: Limit | None = None) -> Replay:
    task = Task(world.plan, 0, MemoryStore(), lineage=LINEAGE, replaying=True)
    return Replay(task, source(world.log, 0), limit=limit)


def test_each_commit_chains_to_the_one_before_by_what_the_tape_says_alone() -> None:
    before, starts = b"", 0
    for record in tapes(lived(starts=3)):
        assert record.identity == tape.identity_of(before, record.nonce, record.number)
        assert bool(record.nonce) == (record.inputs is not None)
        starts += bool(record.nonce)
        before = record.identity
    assert starts == 3


def test_no_two_starts_give_one_commit_the_same_identity() -> None:
    one, other = (tapes(lived()) for _ in range(2))
    assert [each.causes for each in one] == [each.causes for each in other]
    assert {each.identity for each in one}.isdisjoint(each.identity for each in other)
    assert len({new_nonce() for _ in range(100)}) == 100


def test_number_nonce_and_the_commit_before_all_make_a_difference() -> None:
    found = {
        tape.identity_of(before, nonce, number)
        for before in (b"", bytes(16), b"\1" * 16)
        for nonce in (b"", bytes(16), bytes(32), b"\1" * 16)
        for number in (0, 1, 256)
    }
    assert len(found) == 3 * 4 * 3
    assert {len(one) for one in found} == {16}


def test_a_replay_comes_to_the_identities_on_the_tape_whether_it_commits_or_not() -> None:
    world = lived()
    for every in (1, 3):
        replay = again(world)
        for record in tapes(world):
            replay.take(record)
            replay.task.discard_outputs()
            assert tape.decode_cut(replay.task.commit_batch().cut).identity == record.identity
            if record.number % every:
                replay.task.defer_commit()
            else:
                replay.task.committed()
            assert replay.task.identity == record.identity


def test_a_state_within_a_commit_has_an_identity_that_no_commit_has() -> None:
    world = lived()
    replay, record = again(world, Limit(offsets={"sales": 2})), tapes(world)[0]
    assert not replay.take(record)
    replay.task.discard_outputs()
    within = tape.decode_cut(replay.task.commit_batch().cut)
    assert within.commit == record.number == 0
    assert within.identity == tape.identity_within(b"", 0) != record.identity


@pytest.mark.parametrize("join", range(1, 4))
def test_commits_of_two_histories_are_not_replayed_as_one(join: int) -> None:
    """The same counts in both: nothing else tells them apart."""
    world, other = lived(), lived(amount=2)
    records = [*tapes(world)[:join], *tapes(other)[join:]]
    replay = again(world)
    with pytest.raises(ReplayDivergedError, match=f"commit {join} .* does not follow the commit before it"):
        for record in records:
            replay.take(record)
            replay.task.discard_outputs()
            replay.task.defer_commit()
