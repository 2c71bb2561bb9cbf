"""An actor does what the rules say: random programs on the engine and on an oracle that is independent of it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from tailrace.core import rows
from tests.oracle import rules
from tests.oracle.programs import Case, case_of
from tests.oracle.rules import Oracle
from tests.oracle.worlds import InMemory, OnTheLog, Result, follow, of_oracle


def compare(case: Case, world: InMemory | OnTheLog, inside: int | None = None) -> Oracle:
    """Bring each step to both, and compare what they have come to. ``inside``: how many timers are in the row of their key."""
    oracle, inside = Oracle(case.actor), inside or world.random.choice((1, 3, 8))
    try:
        with mock.patch.object(rows, "INSIDE", inside):  # more timers have rows of their own
            for step in case.steps:
                if step.kind == "publish" and step.input in oracle.idle:
                    continue  # whether it is idle then, only the harness knows: a service has no such input
                follow(oracle, step)
                world.do(step, oracle)
            assert_equal(world.come_to(), of_oracle(oracle))
    finally:
        world.close()
    return oracle


def assert_equal(found: Result, expected: Result) -> None:
    """The first difference says most."""
    for number, (one, other) in enumerate(zip(found.said, expected.said, strict=False)):
        assert one == other, f"output {number} after {expected.said[:number][-4:]}"
    assert len(found.said) == len(expected.said)
    assert found == expected


def test_an_actor_does_what_the_rules_say_whatever_strikes_it(seeds: range) -> None:
    done = Counter[str]()
    for seed in seeds:
        case = case_of(seed)
        try:
            oracle = compare(case, InMemory(case, seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        done.update(outputs=len(oracle.outputs), late=oracle.late, letters=len(oracle.letters))
    assert min(done.values()) > len(seeds) // 4, done


@pytest.mark.one_seed_in(25)
def test_so_it_does_in_a_worker_on_the_embedded_log(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        case = case_of(seed, live=True)
        try:
            compare(case, OnTheLog(case, seed, tmp_path / str(seed)))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_the_rules_import_nothing_of_the_framework() -> None:
    tree = ast.parse(Path(rules.__file__).read_text())
    names = [one.module or "" for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]
    names += [alias.name for one in ast.walk(tree) if isinstance(one, ast.Import) for alias in one.names]
    assert names
    assert not [name for name in names if name.startswith(("tailrace", "tests"))]
