"""What a rebuild comes to is what the rules say: along the tape, and in stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tailrace.core import rows
from tailrace.core.engine.query import QueryReader
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.state import MemoryStore
from tests.history.rebuilding import any_app
from tests.history.rebuilding.lived import done
from tests.oracle.programs import case_of
from tests.oracle.rules import START_MS, Oracle
from tests.oracle.test_oracle import compare
from tests.oracle.worlds import OnTheLog, World, of_oracle, stored


def rebuilt(world: World, folder: Path, **options: Any) -> tuple[int, dict[str, Any]]:
    """How many events a rebuild has handled, and the state in its snapshot."""
    report, snapshot = done(folder, any_app.place(world.app), store="memory", any_environment=True, **options)
    store = MemoryStore()
    store.write(dict(snapshot.rows(0)), b"")
    reader = QueryReader(world.plan, 0, store)
    return report.events, stored(
        lambda key: (reader.instance(world.keeper, key), reader.timers(world.keeper, key))
    )


@pytest.mark.one_seed_in(50)
def test_along_the_tape(seeds: range, tmp_path: Path) -> None:
    handled = 0
    for seed in seeds:
        case, folder = case_of(seed, live=True), tmp_path / str(seed)
        world = OnTheLog(case, seed, folder)
        with mock.patch.object(rows, "INSIDE", inside := world.random.choice((1, 3, 8))):
            expected = of_oracle(compare(case, world, inside)).state
            if not any(step.records for step in case.steps):
                continue  # it has never committed
            events, found = rebuilt(world, folder, order="tape")
        assert found == expected, seed
        handled += events
    assert handled


@pytest.mark.one_seed_in(25)
def test_in_stages(seeds: range, tmp_path: Path) -> None:
    handled = 0
    for seed in {*seeds, 275}:  # which finds an input that runs ahead of the others
        case, folder = case_of(seed), tmp_path / str(seed)
        world, oracle = World(case, seed), Oracle(case.actor)
        records = tuple(record for step in case.steps for record in step.records)
        oracle.send_in_stages(records, START_MS)
        log = EmbeddedLog(folder / "log")
        for one in world.plan.inputs:
            log.create_topic(one.name, TopicSettings(1))
        log.append_all(world.outputs(records))
        log.close()
        events, found = rebuilt(world, folder, order="stages", on_error="dead-letter", tables="as-of")
        assert found == of_oracle(oracle).state, seed
        handled += events
    assert handled
