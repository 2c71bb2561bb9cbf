"""Bytes of an input never end a task under ``on_error="dead-letter"``: each record is handled, or a letter with its reason, in order."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions
from tailrace.testing import MemoryLog
from tests.proof.hostile import Made, run


def run_on(log: Any, seed: int, rounds: int, at_once: int, largest: int) -> None:
    def append(some: list[Made]) -> None:
        for made in some:
            log.append_all([made.output], made.partition)

    run(log, append, Random(seed), rounds, at_once, largest)


@pytest.mark.one_seed_in(10)
def test_whatever_is_written_to_an_input_is_handled_or_a_letter_with_its_reason(seeds: range) -> None:
    for seed in seeds:
        run_on(MemoryLog(markers=False, max_record_bytes=1 << 26), seed, 4, 60, 100_000)


@pytest.mark.one_seed_in(50)
def test_the_same_on_disk(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        with closing(EmbeddedLog(tmp_path / str(seed), LogOptions(max_record_bytes=1 << 26))) as log:
            run_on(log, seed, 4, 60, 2_000_000)
