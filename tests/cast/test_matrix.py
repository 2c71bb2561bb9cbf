"""Each app of the cast, however it is run: what comes out is what its oracle says, and each way to the same state comes to the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.errors import SnapshotMismatchError, TailraceError
from tailrace.core.records import Output
from tailrace.history.moving.reshaping import reshape
from tailrace.history.reading.beginnings import base_name
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Engine, LocalEngine
from tailrace.history.snapshots.start_from_snapshot import Start
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.log import TopicSettings
from tailrace.processes.app_loading import find_app
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import WorkerSettings
from tailrace.state.snapshots import Snapshots
from tests.cast.apps import CAST, case_of, place
from tests.cast.member import Case, Found
from tests.cast.struck_log import StruckWriter
from tests.cast.world import World, decoded
from tests.history.rebuilding.lived import TaskState, live, opened, outputs, rebuilt, request
from tests.proof.seeds import shuffled, told
from tests.runtime.bounded_run import BoundedRun
from tests.runtime.world import Kill


@contextmanager
def lived(
    name: str, seed: int, folder: Path | None, part: float = 1
) -> Generator[tuple[Case, tr.App, World]]:
    """A case of a seed, and a world in which ``part`` of its inputs come under faults."""
    case = case_of(name, seed)
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


def the_rest(case: Case) -> Sequence[Output]:
    """What is left of the inputs after a part of 0.6."""
    return case.inputs[case.early + int(0.6 * (len(case.inputs) - case.early)) :]


def assert_equal(found: Found, expected: Found, what: str) -> None:
    more, less = list((found - expected).items()), list((expected - found).items())
    assert found == expected, f"{what}: {len(more)} too many, {len(less)} missing: {more[:4]}, {less[:4]}"


@pytest.mark.one_seed_in(10)
@pytest.mark.parametrize("name", CAST)
def test_in_memory_under_faults_and_replayed(name: str, seeds: range) -> None:
    for seed in seeds:
        with lived(name, seed, None, part=0.6) as (case, app, world):
            if seed % 20:  # a run that ends with what there is, and one of another day
                world.rest()
                world.now_ms += 86_400_000
            world.feed(the_rest(case))
            world.live(6)
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
            for order in orders_of(world):
                assert remade(world, place(name, seed), order, case.topics)[0] == case.expected
            if (
                name != "failing"
            ):  # with some keys, a timer may fire before the commit whose tape says that it failed
                check_some_keys(world, place(name, seed))


def orders_of(world: World) -> tuple[str, ...]:
    """In which orders its history can be run again: operators that feed each other have no stages."""
    return ("tape",) if world.plan.circles else ("tape", "stages")


def remade(
    world: World, app: str, order: str, topics: Collection[str], engine: Engine | None = None, **options: Any
) -> tuple[Found, list[TaskState]]:
    """Outputs and states of a rebuild. Along the tape it has the bytes of the service, and in stages its rows."""
    assert world.folder is not None
    to = world.folder / f"{order}-{engine.name if engine else LocalEngine.name}"
    asked = request(
        world.folder, app, order=order, outputs=f"parquet:{to}", store="memory",
        on_error="stop" if order == "tape" else world.plan.on_error, **options,
    )  # fmt: skip
    snapshot = opened(asked, rebuild(asked, engine or LocalEngine(1)))
    assert snapshot.verify() == []
    states = rebuilt(snapshot)
    if order == "tape":
        assert states == live(world.folder, world.plan)
    else:
        assert {row: value for one in states for row, value in one.rows} == world.rows()
    found = Found()
    for topic in (*topics, world.plan.dead_letters_topic):
        some = outputs(to, snapshot, topic)
        found.update(decoded(find_app(app), topic, some))
        if (
            order == "tape"
            and "base" not in options
            and topic in world.log.topics()
            and not world.log.topics()[topic].compacted
        ):
            assert sorted(some, key=repr) == sorted(world.written(topic), key=repr)
    return found, states


def renamed(found: Found, topic: str, to: str) -> Found:
    """What is in a topic is said to be in another."""
    return Found({(to if name == topic else name, one): count for (name, one), count in found.items()})


def check_some_keys(world: World, app: str) -> None:
    """They have the rows that they have among all."""
    assert world.folder is not None
    asked = request(world.folder, app, order="tape", keys=("k0", "k3"), store="memory")
    found = rebuilt(opened(asked, rebuild(asked, LocalEngine(1))))
    wanted = {
        row: value for row, value in world.rows().items() if rows.read_state_row(row).key in (b"k0", b"k3")
    }
    assert {row: value for one in found for row, value in one.rows} == wanted


@pytest.mark.one_seed_in(50)
@pytest.mark.parametrize("name", [name for name in CAST if name != "broadcast"])
def test_by_workers_that_take_turns_and_die(name: str, seeds: range) -> None:
    """Each has a share of the tasks: neither their number, nor their commits, nor their deaths change what comes out."""
    for seed in seeds:
        random, case = Random(f"workers {name} {seed}"), case_of(name, seed)
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
                    some = scan(run.log, topic, number)
                    found.update(
                        decoded(
                            app,
                            topic,
                            [Output(topic, *one[2:4], one.timestamp_ms, one.headers) for one in some],
                        )
                    )
        assert_equal(found, case.expected, f"{name}, seed {seed}")


@pytest.mark.one_seed_in(50)
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("name", CAST)
def test_restored_from_a_snapshot_on_the_way(name: str, beside: bool, seeds: range, tmp_path: Path) -> None:
    """In place of a state that is lost, or beside the service, under another name."""
    for seed in seeds:
        with lived(name, seed, tmp_path / str(seed), part=0.6) as (case, app, world):
            world.rest()
            world.feed(the_rest(case))
            world.live(2)  # what is under way then goes along
            uri = str(tmp_path / str(seed) / "snapshots")
            made = Snapshots(uri, app.name).open(
                take_snapshot(world.plan, world.log, Snapshots(uri, app.name)).id
            )
            letters = world.outputs(app, ())
            if beside:
                world.become(app.renamed("again").plan())
            else:
                world.live(4)
            world.lose_state()
            world.start = Start(made, base_name(made, uri))
            try:
                world.live(4)
                world.rest(ends=True)
            except SnapshotMismatchError as error:
                # What waits for its turn in an inner topic is the old app's, and in no snapshot.
                if not beside or "waited for their turn" not in str(error):
                    raise
                continue
            found = world.outputs(app, case.topics)
            if beside:  # an app has dead letters of its own
                found = renamed(found, world.plan.dead_letters_topic, app.plan().dead_letters_topic) + letters
            assert_equal(found, case.expected, "restored")
            assert not world.replay().differences.count
            if not beside:
                assert remade(world, place(name, seed), "tape", (), base=uri, base_id=made.manifest.id)[1]


@pytest.mark.one_seed_in(50)
@pytest.mark.parametrize("name", CAST)
def test_moved_to_another_log_with_other_partitions(name: str, seeds: range, tmp_path: Path) -> None:
    if name == "broadcast":
        return
    for seed in seeds:
        with lived(name, seed, tmp_path / str(seed), part=0.6) as (case, app, world):
            world.rest()
            world.feed(the_rest(case))
            world.live(2)  # what is under way then goes along
            before, was = world.outputs(app, case.topics), world.rows()
            partitions, log = case.partitions % 3 + 1, world.new_log("moved")
            uri = str(tmp_path / str(seed) / "snapshots")
            try:
                reshape(world.plan, world.log, log, uri, partitions)
            except SnapshotMismatchError as error:  # it was stopped within what events are ready to do
                if "has late or ready events" not in str(error):
                    raise
                world.rest()
                reshape(world.plan, world.log, log, uri, partitions)
                before, was = world.outputs(app, case.topics), world.rows()
            app = case.make(partitions)
            world.move(log, app.plan())
            assert world.rows() == was
            world.live(6)
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
            remade(world, place("programs", seed), "tape", ())
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
