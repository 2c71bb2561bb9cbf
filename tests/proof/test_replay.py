"""Given the same causes, state and outputs are the same bytes, whatever the batching and wherever a crash struck."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from tailrace.state import RocksStore, StateIdentity
from tests.proof.apps import build
from tests.proof.runs import assert_equal, first_run, follow, replayed
from tests.proof.seeds import Records, each, variant_of


def check_seed(seed: int, trace: list[str]) -> None:
    random = Random(seed)
    variant = variant_of(random)
    trace.append(str(variant))
    model = build(variant)
    log: Records = {}
    first = first_run(model, variant, random, log, trace)
    for run in first.runs:
        plan, number, then = run.plan, run.partition, run.committed
        assert_equal(then, replayed(plan, number, then.tapes, log, random), "replay")
        assert_equal(then, follow(plan, number, then.tapes, log, random, trace), "other batching")
        if seed % 20 == 0:  # the same on disk; fewer, as each opens a database
            with TemporaryDirectory() as folder:
                store = RocksStore(Path(folder) / "state", StateIdentity(plan.app, number))
                assert_equal(then, follow(plan, number, then.tapes, log, random, trace, store), "on disk")
                store.close()


@pytest.mark.one_seed_in(5)  # one takes 0.1 s
def test_the_same_causes_give_the_same_bytes_whatever_the_batching_and_wherever_a_crash_struck(
    seeds: range,
) -> None:
    each(seeds, check_seed)
