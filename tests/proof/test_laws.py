"""The laws. That each of these can fail is shown in test_mutations.py."""

from __future__ import annotations

import pytest

from tests.proof.laws import LAWS


@pytest.mark.parametrize("number", LAWS, ids=[f"{number}-{law.__name__}" for number, law in LAWS.items()])
def test_the_law_holds(number: int) -> None:
    LAWS[number]()
