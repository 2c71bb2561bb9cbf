"""Random programs of windows and joins against the composed oracles: in the harness, and as killed processes that are replayed and rebuilt."""

from __future__ import annotations

import json
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.core.declare.actor import declaration_of
from tailrace.log import Log
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.testing import COMMIT, CRASH, END, REBALANCE, RELOAD, Harness, Item
from tests.cli.commands import done
from tests.library.random_operators import OPERATORS
from tests.library.random_programs import FIXED, Expected, Filled, Program, more_seeds, program, records
from tests.runtime.bounded_run import read_all
from tests.runtime.processes import Running, wait_until

FAULTS = COMMIT, CRASH, RELOAD, REBALANCE


def check_state(made: Program, h: Harness) -> None:
    for node in made.nodes:
        actor: Any = made.app.actors.get(node.name)
        if node.ends and actor is not None:
            assert h.keys(actor) == [], (node.name, h.state(actor, h.keys(actor)[0]))


@pytest.mark.one_seed_in(5)
def test_in_the_harness_under_faults_and_schedules(seeds: range) -> None:
    for seed in seeds:
        check_in_harness(seed)


@pytest.mark.one_seed_in(5)
@pytest.mark.parametrize("operator", [*dict.fromkeys(OPERATORS)])
def test_each_operator_alone_in_the_harness_under_faults(operator: Any, seeds: range) -> None:
    for seed in seeds:
        check_in_harness(seed, Program(seed, operator))


def check_in_harness(seed: int, alone: Program | None = None) -> None:
    made, random = alone or program(seed), Random(seed)
    events = made.events(random.choice((30, 150, 300)))
    wanted = made.expected(events)
    items = list[Item]()
    table = [one for one in events if one[0] is made.table]
    for event in events[len(table) :]:
        items += [event] if random.random() < 0.95 else [event, random.choice(FAULTS)]
    try:
        with Harness(made.app, checked=seed % 4 == 0, slice_size=random.choice((1, 7, 1_000))) as h:
            h.run([*table, COMMIT, *items, END])
            assert_equal(wanted.given, Counter(h.emitted(made.given)))
            assert_equal(wanted.late, Counter(h.emitted(made.late)))
            assert_equal(wanted.filled, Counter(h.emitted(made.filled)))
            assert h.table(made.last) == wanted.last
            assert h.dropped == wanted.dropped
            check_state(made, h)
            h.replay()
        if (
            alone is None and seed % 50 == 0 and not any(one.looks_up for one in made.nodes)
        ):  # what is found depends on when the table is read
            with Harness(made.app) as h:
                history = [*events, *made.ending()]
                assert h.explore(history, schedules=4, idleness=False, unordered=made.outputs).equal
    except BaseException as error:
        error.add_note(f"seed {seed}: " + "; ".join(spelled(made)))
        raise


def spelled(made: Program) -> list[str]:
    """What the operators are."""
    found = []
    for node in made.nodes:
        actor: Any = made.app.actors.get(node.name)
        what = "lookup" if actor is None else declaration_of(actor).operator
        found.append(f"{node.name} of {', '.join(one.name for one in node.inputs)}: {what}")
    return found


def assert_equal(wanted: Counter[Any], found: Counter[Any]) -> None:
    assert found == wanted, ("more:", found - wanted, "missing:", wanted - found)


def outputs(log: Log, made: Program) -> Expected:
    """What the topics of a program hold."""
    last = read_all(log, made.last.name, Filled)
    return Expected(
        Counter(read_all(log, made.given.name, made.given.type)),
        Counter(read_all(log, made.late.name, made.late.type)),
        Counter(read_all(log, made.filled.name, Filled)),
        {(one.key, one.start): one for one in last},
    )


def check_outputs(log: Log, made: Program, wanted: Expected) -> None:
    found = outputs(log, made)
    assert_equal(wanted.given, found.given)
    assert_equal(wanted.late, found.late)
    assert_equal(wanted.filled, found.filled)
    assert found.last == wanted.last


def app_of(seed: int) -> str:
    return f"tests.library.random_programs:app_{seed}"


@pytest.mark.parametrize("seed", [*FIXED, *more_seeds()])
def test_in_two_nights_and_by_killed_workers_then_replayed_and_rebuilt(seed: int, tmp_path: Path) -> None:
    made, app = program(seed), app_of(seed)
    events = made.events(400)
    place, first = tmp_path / "log", Random(seed).randrange(50, 200)
    run = ("run", app, "--log", place, "--state", tmp_path / "state", "--commit-interval", "20ms")
    with closing(EmbeddedLog(place)) as log:
        prepare_log(log, made.app.plan(), create_declared=True)
        for night in (events[:first], events[first:250]):
            log.append_all(records(night))
            done(*run, "--until-end")
        before = outputs(log, made).given.total()
        with Running(*run, "--workers", 2) as service:
            log.append_all(records(events[250:320]))
            wait_until(lambda: outputs(log, made).given.total() > before, "there are more results")
            log.append_all(records(events[320:]))
            for worker in service.started_workers():
                service.signal(signal.SIGKILL, worker)
            service.signal(signal.SIGKILL)
        done(*run, "--end-of-input")
        check_outputs(log, made, made.expected(events))
    assert json.loads(done("replay", app, "--log", place, "--compare", "--json").out)["differences"] == 0
    workers = 2 if seed % 3 == 2 else 1
    rebuild = ("rebuild", app, "--log", place, "--to", tmp_path / "snapshots", "--workers", workers)
    assert "all equal, byte for byte" in done(*rebuild).out
