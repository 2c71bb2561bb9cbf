"""The pages of the documentation."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name_of(path: Path) -> str:
    """A page's path from the root, as the test's id."""
    return path.relative_to(ROOT).as_posix()
