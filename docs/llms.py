"""Writes ``llms.txt``, what coding agents read first: what Tailrace is, how to check an app, the rules for handlers, and all pages.

It is made of the README, ``agents.md``, one section of ``first-service.md`` and the list of pages. See llmstxt.org.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parent
TARGET = DOCS.parent / "llms.txt"
LINK = re.compile(r"\]\((?!https?://|#)([^)]+)\)")


def llms() -> str:
    """The text."""
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    summary = re.search(r"^\*\*(.+?)\*\*$", readme, re.MULTILINE)
    assert summary is not None
    agents = page("agents.md").split("\n## ", 1)[1]
    pages = "\n".join(line for line in page("README.md").splitlines() if line.startswith("- ["))
    parts = [
        f"# Tailrace\n\n> {summary[1]}",
        f"## {agents}",
        section("What a handler may not do"),
        f"## Pages\n\n{pages}",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def page(name: str) -> str:
    """A page, with its links from the root of the repository."""
    return LINK.sub(r"](docs/\1)", (DOCS / name).read_text("utf-8")).replace("](docs/../", "](")


def section(title: str) -> str:
    """A section of the page about the first service."""
    _, _, found = page("first-service.md").partition(f"\n## {title}\n")
    assert found
    return f"## {title}\n{found.partition(chr(10) + '## ')[0]}"


if __name__ == "__main__":
    TARGET.write_text(llms(), "utf-8")
