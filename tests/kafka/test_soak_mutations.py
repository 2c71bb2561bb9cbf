"""The mistakes that the soak must find are known; ``python -m tests.kafka.soak_mutations`` shows that it finds them."""

from __future__ import annotations

import pytest

from tests.kafka.mutations import MUTATIONS
from tests.kafka.soak_mutations import MISTAKES, ROOT

pytestmark = pytest.mark.nightly

FENCING = {
    "a-producer-that-is-not-named",
    "a-dead-owner-that-is-not-fenced",
    "the-ends-of-before-a-take-over",
}


@pytest.mark.parametrize("names", MISTAKES)
def test_a_mistake_is_a_mutation_or_some_of_different_modules(names: str) -> None:
    modules = [MUTATIONS[name].module for name in names.split(",")]
    assert len({*modules}) == len(modules)


def test_the_soak_must_find_each_mistake_in_fencing() -> None:
    assert set(MISTAKES) >= FENCING


def test_the_page_on_reliability_lists_every_mistake_with_its_seed() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    missing = [
        names
        for names, found in MISTAKES.items()
        if not any(
            f"| {found.seed} |" in line and all(f"`{name}`" in line for name in names.split(","))
            for line in page.splitlines()
        )
    ]
    assert missing == []
