"""Each app of the cast, however it is run: what comes out is what its oracle says, and each way to the same state comes to the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest

import tailrace as tr
from tailrace.core.errors import TailraceError
from tailrace.core.records import Output
from tailrace.history.moving.reshaping import reshape
from tailrace.history.reading.beginnings import base_name
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.snapshots.start_from_snapshot import Start
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicSettings
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import WorkerSettings
from tailrace.state.snapshots import Snapshots
from tests.cast import counting, operators, random_webs, trading
from tests.cast.member import Case, Found
from tests.cast.world import StruckWriter, World, decoded
from tests.history.rebuilding import any_app
from tests.history.rebuilding.lived import live, opened, outputs, rebuilt, request
from tests.proof.seeds import shuffled, told
from tests.runtime.bounded_run import BoundedRun
from tests.runtime.world import Kill

CAST: dict[str, Callable[[Random], Case]] = {
    one.__name__: one
    for one in (
        counting.count,
        counting.ships,
        counting.failing,
        trading.shop,
        trading.orders,
        trading.messages,
        operators.windows,
        operators.joins,
        operators.tables,
        operators.broadcast,
        operators.chained,
        random_webs.webs,
    )
}


@contextmanager
def lived(
    name: str, seed: int, folder: Path | None, part: float = 1
) -> Generator[tuple[Case, tr.App, World]]:
    """A case of a seed, and a world in which ``part`` of its inputs come under faults."""
    random = Random(f"{name} {seed}")
    case = CAST[name](random)
    app = case.make(case.partitions)
    count = case.early + int(part * (len(case.inputs) - case.early))
    world = World(app.plan(), seed, case.inputs[case.early : count], folder)
    try:
        world.rest(case.inputs[: case.early])
        world.live(8)
        yield case, app, world
    except BaseException as error:
        error.add_note(f"{name}, seed {seed}\n  " + "\n  ".join(world.trace[-60:]))
        raise
    finally:
        world.close()
        if folder is not None:
            rmtree(folder)


def assert_equal(found: Found, expected: Found, what: str) -> None:
    more, less = list((found - expected).items()), list((expected - found).items())
    assert found == expected, f"{what}: {len(more)} too many, {len(less)} missing: {more[:4]}, {less[:4]}"


@pytest.mark.one_seed_in(10)
@pytest.mark.parametrize("name", CAST)
def test_in_memory_under_faults_and_replayed(name: str, seeds: range) -> None:
    for seed in seeds:
        with lived(name, seed, None) as (case, app, world):
            world.rest(ends=True)
            assert_equal(world.outputs(app, case.topics), case.expected, "under faults")
            assert not world.replay().differences.count


@pytest.mark.one_seed_in(50)
@pytest.mark.parametrize("name", CAST)
def test_on_disk_under_faults_replayed_and_rebuilt(name: str, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        with lived(name, seed, tmp_path / str(seed)) as (case, app, world):
            world.rest(ends=True)
            assert_equal(world.outputs(app, case.topics), case.expected, "under faults")
            assert not world.replay().differences.count
            assert remade(world, app, "tape", case.topics) == case.expected
            assert remade(world, app, "canonical", case.topics) == case.expected


def remade(world: World, app: tr.App, order: str, topics: Collection[str]) -> Found:
    """The outputs of a rebuild. Along the tape it has the bytes of the service, and in canonical order its rows."""
    assert world.folder is not None
    place = world.folder / order
    asked = request(
        world.folder,
        any_app.place(app),
        order=order,
        outputs=f"parquet:{place}",
        store="memory",
        any_environment=True,
        on_error="stop" if order == "tape" else world.plan.on_error,
    )
    snapshot = opened(asked, rebuild(asked, LocalEngine(1)))
    if order == "tape":
        assert rebuilt(snapshot) == live(world.folder, world.plan)
    else:
        assert {row: value for one in rebuilt(snapshot) for row, value in one.rows} == world.rows()
    found = Found()
    for topic in (*topics, world.plan.dead_letters_topic):
        found.update(decoded(app, topic, outputs(place, snapshot, topic)))
    return found


@pytest.mark.one_seed_in(50)
@pytest.mark.parametrize("name", [name for name in CAST if name != "broadcast"])
def test_by_workers_that_take_turns_and_die(name: str, seeds: range) -> None:
    """Each has a share of the tasks: neither their number, nor their commits, nor their deaths change what comes out."""
    for seed in seeds:
        random = Random(f"{name} {seed}")
        case = CAST[name](random)
        app = case.make(3)
        partition = PartitionSettings(commit_interval_ms=random.choice((0, 20, 10_000)))
        settings = WorkerSettings(slice_records=random.choice((3, 50, 10_000)), partition=partition)
        run = BoundedRun(app, settings=settings)
        left = random.randrange(1, 40)

        def strike(_: str, run: BoundedRun = run, random: Random = random) -> None:
            nonlocal left
            left -= 1
            if left < 0 and run.deaths < 6:
                left = random.randrange(1, 40)
                raise Kill

        for one in run.plan.inputs:
            if not one.is_inbox:
                run.log.create_topic(one.name, TopicSettings(3))
        run.log.append_all(case.inputs)
        run.strike = strike
        run.run(random.choice((1, 2, 3)))
        assert run.deaths == 6
        found = Found()
        for topic in (*case.topics, run.plan.dead_letters_topic):
            if topic in run.log.topics():
                for number in range(3):
                    found.update(decoded(app, topic, scan(run.log, topic, number)))
        assert_equal(found, case.expected, f"{name}, seed {seed}")


@pytest.mark.one_seed_in(50)
@pytest.mark.parametrize("name", CAST)
def test_restored_from_a_snapshot_on_the_way(name: str, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        with lived(name, seed, tmp_path / str(seed), part=0.6) as (case, app, world):
            world.rest()
            uri = str(tmp_path / str(seed) / "snapshots")
            snapshots = Snapshots(uri, app.name)
            made = snapshots.open(take_snapshot(world.plan, world.log, snapshots).id)
            rest = case.inputs[case.early + int(0.6 * (len(case.inputs) - case.early)) :]
            world.feed(rest)
            world.live(4)
            world.lose_state()
            world.start = Start(made, base_name(made, uri))
            world.live(4)
            world.rest(ends=True)
            assert_equal(world.outputs(app, case.topics), case.expected, "restored")
            assert not world.replay().differences.count


@pytest.mark.one_seed_in(50)
@pytest.mark.parametrize("name", CAST)
def test_moved_to_another_log_with_other_partitions(name: str, seeds: range, tmp_path: Path) -> None:
    if name == "broadcast":
        return
    for seed in seeds:
        with lived(name, seed, tmp_path / str(seed), part=0.6) as (case, app, world):
            world.rest()
            before, was = world.outputs(app, case.topics), world.rows()
            partitions, log = case.partitions % 3 + 1, world.new_log("moved")
            reshape(world.plan, world.log, log, str(tmp_path / str(seed) / "snapshots"), partitions)
            app = case.make(partitions)
            world.move(log, app.plan())
            assert world.rows() == was
            world.feed(case.inputs[int(0.6 * len(case.inputs)) :])
            world.live(8)
            world.rest(ends=True)
            found = world.outputs(app, case.topics)
            letters = world.plan.dead_letters_topic  # those before the move stay on the former log
            assert_equal(
                found + Found({one: n for one, n in before.items() if one[0] == letters}),
                case.expected,
                "moved",
            )
            assert not world.replay().differences.count


@pytest.mark.one_seed_in(50)
def test_programs_that_no_oracle_knows_come_to_the_same_bytes(seeds: range, tmp_path: Path) -> None:
    """Every kind of state, timer, failure and message that there is: under faults, replayed, rebuilt, moved and moved back."""
    for seed in seeds:
        one, folder = shuffled(seed), tmp_path / str(seed)
        plan = one.model.app.plan()
        world = World(plan, seed, one.inputs, folder, one.flaky)
        with told(seed, world.trace):
            world.live(12)
            world.rest(ends=seed % 2 == 0)
            world.replay()
            one.flaky(False)
            remade(world, one.model.app, "tape", ())
            was = world.rows()
            for partitions in (plan.partitions % 3 + 1, plan.partitions):
                log = world.new_log(f"moved-{partitions}")
                reshape(world.plan, world.log, log, str(folder / "snapshots"), partitions)
                world.move(log, replace(plan, partitions=partitions))
                assert world.rows() == was
                world.rest()
                assert not world.replay().differences.count
                was = world.rows()
        world.close()
        rmtree(folder)


def test_what_is_written_outside_of_the_commit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = StruckWriter.append

    def append_at_once(self: StruckWriter, outputs: list[Output], partition: int | None = None) -> None:
        append(self, outputs, partition)
        if partition is None:  # no changelog, no tape
            self.inner.commit()

    monkeypatch.setattr(StruckWriter, "append", append_at_once)
    with pytest.raises((AssertionError, TailraceError)):
        for seed in range(20):
            with lived("count", seed, tmp_path / str(seed)) as (_, _, world):
                world.rest(ends=True)
                world.replay()
