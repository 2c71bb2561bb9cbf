"""Each law's check is shown able to fail: a mistake is put into the framework, and the check must notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.laws import LAWS
from tests.proof.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_law_notices(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.mutations", name],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr or f"law {MUTATIONS[name].law} holds on broken code"
    assert done.stdout.strip(), "it was not the check that failed"


def test_every_law_has_a_mutation() -> None:
    assert {mutation.law for mutation in MUTATIONS.values()} == set(LAWS)


def test_the_page_on_reliability_lists_every_law_and_mutation() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert [name for name in MUTATIONS if f"`{name}`" not in page] == []
    assert [law.__name__ for law in LAWS.values() if f"`{law.__name__}`" not in page] == []
