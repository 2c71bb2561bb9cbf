"""The tests of Kafka are shown able to fail: a mistake is put into the code, and they must notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tests.kafka.mutations import MUTATIONS
from tests.proof.mutations import mutated

ROOT = Path(__file__).parents[2]
SLOW = {"a-producer-that-forgets-its-coordinator", "a-close-that-waits-for-brokers"}
"""They need minutes, or a broker of their own."""


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in SLOW])
def test_the_tests_notice(name: str, kafka: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kafka.mutations", name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}", "TAILRACE_TEST_KAFKA": kafka},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_fits_the_code(name: str) -> None:
    made = MUTATIONS[name]
    source = Path(tailrace.__file__).parent.joinpath(*made.module.split(".")).with_suffix(".py").read_text()
    compile(mutated(made.mutation, source), name, "exec")


def test_the_page_on_reliability_lists_every_mutation() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert [name for name in MUTATIONS if f"`{name}`" not in page] == []
