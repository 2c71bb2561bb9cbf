"""Each page of the cookbook is run, compares its results with plain Python, and has the same parts as the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page import ROOT, blocks, play

COOKBOOK = ROOT / "docs" / "cookbook"
PAGES = sorted(page.name for page in COOKBOOK.glob("*.md") if page.name != "README.md")
PARTS = ["The code", "The test", "Late events", "Watch out"]


def parts(markdown: str) -> list[str]:
    return [one for one in re.findall(r"^## (.+)$", markdown, re.MULTILINE) if one in PARTS]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_recipe_says_is_what_happens(page: str, tmp_path: Path) -> None:
    assert play((COOKBOOK / page).read_text("utf-8"), tmp_path) >= 1


@pytest.mark.parametrize("page", PAGES)
def test_a_recipe_has_its_code_a_test_against_plain_python_late_events_and_warnings(page: str) -> None:
    markdown = (COOKBOOK / page).read_text("utf-8")
    assert parts(markdown) == PARTS
    code = [block.text for block in blocks(markdown) if block.kind == "python"]
    tests = [one for one in code if one.startswith("# test_")]
    assert any("Harness(" in one and "expected(" in one for one in tests)


def test_every_recipe_is_listed() -> None:
    index = (COOKBOOK / "README.md").read_text("utf-8")
    assert [page for page in PAGES if f"]({page})" not in index] == []
