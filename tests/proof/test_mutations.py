"""Each law's check is shown able to fail: a mistake is put into the framework, and the check must notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proof.forked import ROOT, Forked
from tests.proof.laws import LAWS
from tests.proof.mutations import MUTATIONS


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}", "PATH": "/usr/bin:/bin"}
    made = Forked("tests.proof.mutations", tmp_path_factory.mktemp("forked"), environment)
    yield made
    made.close()


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_law_notices(name: str, forked: Forked) -> None:
    code, said = forked.run(name)
    assert code == 0, said or f"law {MUTATIONS[name].law} holds on broken code"
    assert said.strip(), "it was not the check that failed"


def test_every_law_has_a_mutation_that_its_own_check_notices() -> None:
    assert {mutation.law for mutation in MUTATIONS.values() if not mutation.tests} == set(LAWS)


def test_the_page_on_reliability_lists_every_law_and_mutation() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert [name for name in MUTATIONS if f"`{name}`" not in page] == []
    assert [law.__name__ for law in LAWS.values() if f"`{law.__name__}`" not in page] == []
