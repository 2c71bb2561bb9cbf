"""The tests of Kafka are shown able to fail: a mistake is put into the code, and they must notice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tests.kafka.mutations import MUTATIONS
from tests.proof.forked import ROOT, Forked
from tests.proof.mutating import mutated

pytestmark = pytest.mark.nightly

SLOW = {"a-producer-that-forgets-its-coordinator", "a-close-that-waits-for-brokers"}
"""They need minutes, or a broker of their own."""


@pytest.fixture(scope="module")
def forked(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    path = f"{ROOT}:{ROOT / 'framework'}"
    environment = {**os.environ, "PYTHONPATH": path, "TAILRACE_TEST_KAFKA": kafka}
    made = Forked("tests.kafka.mutations", tmp_path_factory.mktemp("forked"), environment)
    yield made
    made.close()


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in SLOW])
def test_the_tests_notice(name: str, forked: Forked) -> None:
    code, said = forked.run(name)
    assert code == 0, said[-6_000:]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_fits_the_code(name: str) -> None:
    mutation = MUTATIONS[name]
    path = Path(tailrace.__file__).parents[1].joinpath(*mutation.module.split(".")).with_suffix(".py")
    compile(mutated(mutation, path.read_text()), name, "exec")


def test_the_page_on_reliability_lists_every_mutation() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert [name for name in MUTATIONS if f"`{name}`" not in page] == []
