"""A rebuild in stages is equal to the service wherever it stands: between any two commits, in a quiet hour, whatever is idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import pytest

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.stages import Stages, own_inputs
from tailrace.core.errors import DefinitionError, OptionError
from tailrace.history.provenance.judging import taped
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import base_name
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.snapshots.start_from_snapshot import Start
from tailrace.state.snapshots import Snapshot
from tests.cast.webs import Piece, Web, oracle, pieces, records, web_of
from tests.cast.world import World
from tests.history.rebuilding import any_app
from tests.history.rebuilding.lived import opened, request
from tests.proof.seeds import told


def web_in_stages(random: Random) -> Web:
    """Operators of either order, without a circle."""
    while True:
        try:
            web = web_of(random)
            for node in web.nodes:
                node.order = "event-time" if random.random() < 0.8 else "arrival"
                node.commutes = True  # among events of one instant
            web = replace(web, idle_after=random.choice(("1s", "30s", "1000d")))
            Stages(web.app.plan())
        except (DefinitionError, OptionError):
            continue
        return web


def known(web: Web) -> set[str]:
    """The actors whose results follow from the events alone, and not from the schedule: those behind others of that kind."""
    plan, found = web.app.plan(), set[str]()
    own, stages = own_inputs(plan), Stages(plan)
    topics = {one.name: {plan.operators[route.operator].name for route in one.routes} for one in plan.inputs}
    for operator in sorted(plan.operators, key=lambda one: stages.of[one.index]):
        read = [one for one in plan.inputs if operator.name in topics[one.name]]
        writers = {
            other.name
            for other in plan.operators
            if any(edge.name in {one.name for one in read} or edge.is_stream for edge in other.emits)
            or any(plan.by_class[cls].name == operator.name for cls in other.sends)
        }
        takes_one = len(read) == 1 and read[0].name not in own and not writers
        if (operator.ordered or takes_one) and writers - {operator.name} <= found:
            found.add(operator.name)
    return found


def has_no_cut(world: World) -> bool:
    """Whether it has not committed yet, or a commit has fallen into what was due."""
    history = AppHistory(world.plan, world.log)
    cuts = [tape.decode_cut(one) for one in map(_cut_of(history), range(world.plan.partitions)) if one]
    last = [taped(world.plan, world.log, one.partition, one.commit) for one in cuts]
    return not cuts or any(one is None or one.within_drain for one in last)


def _cut_of(history: AppHistory) -> Callable[[int], bytes | None]:
    return lambda number: history.committed(number).cut


def late_live(world: World) -> int:
    history = AppHistory(world.plan, world.log)
    cuts = [history.committed(number).cut for number in range(world.plan.partitions)]
    return sum(tape.decode_cut(one).totals.late for one in cuts if one)


def nothing_is_under_way(world: World) -> bool:
    """Whether all tasks have committed, and have read what the app has sent to itself."""
    history = AppHistory(world.plan, world.log)
    cuts = [history.committed(number).cut for number in range(world.plan.partitions)]
    return all(cuts) and all(
        cut.positions.get(name, 0) == world.log.end_offset(name, cut.partition)
        for cut in map(tape.decode_cut, filter(None, cuts))
        for name in own_inputs(world.plan)
        if name in world.log.topics()
    )


def rows_of(found: dict[bytes, bytes], actors: set[str]) -> dict[bytes, bytes]:
    return {row: value for row, value in found.items() if rows.read_state_row(row).actor in actors}


def made(world: World, app: str, **options: Any) -> tuple[Snapshot, dict[bytes, bytes]]:
    assert world.folder is not None
    asked = request(world.folder, app, order="stages", store="memory", **options)
    snapshot = opened(asked, rebuild(asked, LocalEngine(1)))
    assert snapshot.verify() == []
    return snapshot, {
        row: value for one in snapshot.manifest.tasks for row, value in snapshot.rows(one.partition)
    }


@pytest.mark.one_seed_in(5)
def test_ordered_operators_come_to_what_the_service_has(seeds: range, tmp_path: Path) -> None:
    """A rebuild from the beginning, or from an earlier rebuild, and a service that continues from it equal plain Python."""
    compared = continued = replaced = 0
    for seed in seeds:
        random = Random(f"stages {seed}")
        web = web_in_stages(random)
        sources = pieces(web, random, 40)
        if random.random() < 0.4:  # one of them is silent
            sources[random.choice(sorted(sources))] = [Piece("k1", 5, 1)] * random.randint(0, 1)
        some = sorted(
            (one for name in sources for one in records(web, {name: sources[name]})),
            key=lambda one: one.timestamp_ms,
        )
        app, folder = any_app.place(web.app), tmp_path / str(seed)
        world, trace = World(web.app.plan(), seed, some, folder), list[str]()
        trace += map(str, web.nodes)
        actors, uri, base = known(web), str(folder / "snapshots"), ""
        with told(seed, trace):
            for _ in range(3):
                world.live(random.randint(1, 5))
                if random.random() < 0.3:
                    world.now_ms += random.choice((2_000, 40_000, 3_600_000))
                    world.rest([])
                if has_no_cut(world) or late_live(world):
                    continue
                live = rows_of(world.rows(), actors)
                snapshot, found = made(world, app)
                assert rows_of(found, actors) == live
                compared += len(live)
                if base:
                    split = random.choice((1, 1, 2, 5))
                    _, again = made(world, app, base=uri, base_id=base, name=f"again-{base}", split=split)
                    assert rows_of(again, actors) == live
                    continued += 1
                base = snapshot.manifest.id
                if random.random() < 0.4 and nothing_is_under_way(world):
                    world.start = Start(snapshot, base_name(snapshot, uri), replace=True)
                    world.rest([])
                    world.start, base = None, ""
                    replaced += 1
            world.rest(ends=True)
            if not late_live(world):
                expected = {("results", one): count for one, count in oracle(web, sources).items()}
                assert world.outputs(web.app, ("results",)) == expected
        world.close()
        rmtree(folder)
    assert compared
    assert continued
    assert replaced
