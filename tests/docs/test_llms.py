"""What coding agents read is what the pages say, and its links lead somewhere."""

from __future__ import annotations

import re
import runpy

from tests.docs.page import ROOT

TEXT = (ROOT / "llms.txt").read_text("utf-8")


def test_it_is_built_from_the_pages() -> None:
    assert runpy.run_path(str(ROOT / "docs/llms.py"))["llms"]() == TEXT, "run `python docs/llms.py`"


def test_its_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", TEXT)
    assert len(links) > 30
    assert not [one for one in links if not (ROOT / one).exists()]


def test_it_has_every_page_and_the_rules_for_handlers() -> None:
    listed = {*re.findall(r"^- .*?\]\((docs/[\w-]+\.md)", TEXT, re.MULTILINE)}
    pages = {f"docs/{one.name}" for one in (ROOT / "docs").glob("*.md")}
    assert pages - listed == {"docs/README.md"}
    assert "not in a handler. Emit a request" in TEXT
