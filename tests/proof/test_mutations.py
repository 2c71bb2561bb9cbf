"""The tests of each law are shown able to fail: a mistake is put into the framework, and they must notice it."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.proof.mutating import ROOT
from tests.proof.mutations import MUTATIONS, NotFoundError, change


@pytest.mark.long
@pytest.mark.parametrize(
    "laws", [range(1, 5), range(5, 9), range(9, 13)], ids=lambda laws: f"{laws[0]}-{laws[-1]}"
)
def test_the_tests_of_a_law_notice_each_mistake(laws: range) -> None:
    names = [name for law in laws for name in MUTATIONS[law]]
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.mutations", *names],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'framework'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": noticed\n") == len(names)


def test_a_mistake_that_does_not_fit_the_code_is_an_error() -> None:
    mutation = MUTATIONS[7]["a-cancelled-timer-that-fires"]
    with pytest.raises(NotFoundError, match="is 0 times in core"):
        change(mutation, ast.parse("class ActorTimers:\n    def move_timer(self): pass"))


def test_the_page_on_reliability_lists_every_mutation_at_its_law() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text().splitlines()
    rows = {law: next(line for line in page if line.startswith(f"| {law} |")) for law in MUTATIONS}
    assert list(MUTATIONS) == list(range(1, 13))
    for law, mutations in MUTATIONS.items():
        assert [name for name in mutations if f"`{name}`" not in rows[law]] == []
