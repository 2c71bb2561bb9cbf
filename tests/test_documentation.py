"""Laws on the documentation: links lead somewhere, and Python in it is Python."""

import ast
import re
import textwrap
from pathlib import Path

import pytest

from tests.documentation import PAGES, ROOT, name_of


def slug(heading: str) -> str:
    """The anchor that a Markdown renderer gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", ""))
    return kept.replace(" ", "-")


def prose(page: Path) -> str:
    """The page without its code, in which a bracket is not a link."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}, which is not there"
        if anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ +(.+)$", file.read_text("utf-8"), flags=re.MULTILINE)
            assert anchor in map(slug, headings), f"{name_of(page)} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_parses(page: Path) -> None:
    blocks = re.findall(
        r"^( *)```python\n(.*?)^ *```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for _, code in blocks:
        ast.parse(textwrap.dedent(code), filename=name_of(page))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "docs/api/spark.rst"], ids=name_of)
def test_no_page_installs_what_is_not_published(page: Path) -> None:
    assert not re.findall(r"pip install [^\n]*[ '\"]tailrace\b", page.read_text("utf-8"))


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = [page for page in PAGES if page.parent == ROOT / "docs"]  # a folder's are listed by the folder
    missing = [name_of(page) for page in pages if page.name != "README.md" and f"]({page.name})" not in index]
    assert not missing, f"docs/README.md does not list {missing}"
