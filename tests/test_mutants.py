"""The mutants of the nightly run: which mistakes are made, and that the same seed draws the same ones."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import FILES, drawn, mutants, put, sites
from tests.proof.mutating import path_of

HEAD = "def f(self, a, b):\n    "


@pytest.mark.parametrize(
    ("code", "mistakes"),
    [
        ("self.push(a)", ["pass"]),
        ("return a", ["return None"]),
        ("return None", []),
        ("x = a < b", ["x = a <= b"]),
        ("x = a is b <= b", ["x = a is not b <= b", "x = a is b < b"]),
        ("x = a and b", ["x = a or b"]),
        ("x = 3", ["x = 4"]),
        ("x = True", ["x = False"]),
        ("x = min(a, b)", ["x = max(a, b)"]),
        ("if a: x", ["if not a:\n    x"]),
        ("if not a: x", ["if a:\n    x"]),
        ("if a == b: x", ["if a != b:\n    x"]),
        ("raise ValueError(f'{a}, not {1}')", []),
        ("x: Literal[1] = a", []),
    ],
)
def test_each_mistake_is_made_in_a_function(code: str, mistakes: list[str]) -> None:
    made: list[str] = []
    for number in range(len(sites(ast.parse(HEAD + code)))):
        tree = ast.parse(HEAD + code)
        put(number, tree)
        made.append(ast.unparse(tree).removeprefix(HEAD).replace("\n    ", "\n"))
    assert made == mistakes


def test_what_returns_nothing_returns_at_once() -> None:
    tree = ast.parse("def f(a) -> None:\n    a.b = a")
    put(0, tree)
    assert ast.unparse(tree) == "def f(a) -> None:\n    return"


def test_a_module_outside_of_its_functions_is_left_as_it_is() -> None:
    assert sites(ast.parse("LIMIT = 3\nregister(LIMIT)")) == []


@pytest.mark.parametrize("file", FILES)
def test_every_file_has_mutants_and_each_differs_from_it(file: str) -> None:
    first, *_, last = mutants([file])
    for one in (first, last):
        before, tree = (ast.parse(path_of(one.module).read_text()) for _ in range(2))
        one.change(tree)
        assert ast.unparse(tree) != ast.unparse(before), one.name


def test_a_seed_draws_the_same_mutants() -> None:
    first, again, other = ([one.name for one in drawn([*FILES], 20, seed)] for seed in (7, 7, 8))
    assert first == again != other
