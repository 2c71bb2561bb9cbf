"""What errors say. ``messages.txt`` of each folder of tests has the whole text for each test that takes ``refused`` or ``says``.

``python -m pytest --write-messages PATHS`` writes the entries of the tests that it runs, and drops those that have no test; a diff is
reviewed. A test without an entry fails, and so does the collection of a file that an entry names a missing test of.
Folders of the machine, ports and addresses in memory are left out of the texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

TESTS = Path(__file__).parent
NAME = "messages.txt"
HEAD = "# Written by `python -m pytest --write-messages`: see tests/messages.py.\n"
Refused: TypeAlias = Callable[[], AbstractContextManager[pytest.ExceptionInfo[Exception]]]
"""``with refused(): ...`` expects an error, of the type and with the text of its entry."""
Says: TypeAlias = Callable[[str], None]
"""``says(text)`` compares a text with its entry."""
Entries: TypeAlias = dict[str, str]
STALE = pytest.StashKey[dict[Path, list[str]]]()
"""In a worker of pytest-xdist, the entries without a test by folder: each test there fails."""


def read(path: Path) -> Entries:
    """The texts by the names of the tests: a line with the name, then the indented lines of the text."""
    parts = (
        re.split(r"^(?=\S)", path.read_text("utf-8").removeprefix(HEAD), flags=re.MULTILINE)
        if path.exists()
        else []
    )
    split = [part.partition("\n") for part in parts if part]
    return {
        name: re.sub(r"^    ", "", text, flags=re.MULTILINE).removesuffix("\n") for name, _, text in split
    }


def write(path: Path, entries: Entries) -> None:
    texts = [
        f"{name}\n{re.sub('^', '    ', text, flags=re.MULTILINE)}\n" for name, text in sorted(entries.items())
    ]
    path.write_text(HEAD + "".join(texts), "utf-8") if texts else path.unlink(missing_ok=True)


def stale(entries: Entries, folder: Path, ids: set[str], whole: set[str]) -> list[str]:
    """The entries without a test: of files that are gone, and of files that were collected ``whole``."""
    found: list[str] = []
    for name in entries:
        file, is_missing = name.partition("::")[0], name.partition(" #")[0] not in ids
        if (file in whole and is_missing) or not (folder / file).exists():
            found.append(name)
    return found


def plain(text: str, folder: Path) -> str:
    """The text without what differs from machine to machine and from run to run."""
    for found, name in ((str(folder), "TMP"), (str(TESTS.parent), "REPO")):
        text = text.replace(found, name)
    text = re.sub(r"\b0x[0-9a-f]{6,}", "0x…", text)
    return re.sub(r"(?<=127\.0\.0\.1:)\d+|(?<=localhost:)\d+", "PORT", text)


def id_of(item: pytest.Item) -> str:
    """The name of a test in the file of its folder."""
    return f"{item.path.name}::{item.nodeid.partition('::')[2]}".replace("\n", " ")


class Asked:
    """The texts that one test asks for, in their order."""

    def __init__(self, item: pytest.Item, folder: Path) -> None:
        self.path = item.path.parent / NAME
        self.name = id_of(item)
        self.entries, self.folder, self.count = read(self.path), folder, 0
        self.writes = bool(item.config.getoption("--write-messages"))

    def says(self, text: str) -> None:
        self.count += 1
        name = self.name if self.count == 1 else f"{self.name} #{self.count}"
        text = plain(text, self.folder)
        if self.writes:
            self.entries[name] = text
        else:
            entry = self.entries.get(name, "(no entry)")
            assert text == entry, f"{name} says\n{text}\nand {self.path} has\n{entry}"

    def finish(self) -> None:
        """Check that it has asked for all of its entries; or write them."""
        mine = [one for one in self.entries if one.partition(" #")[0] == self.name]
        if self.writes:
            kept = {self.name, *(f"{self.name} #{number}" for number in range(2, self.count + 1))}
            write(
                self.path,
                {name: text for name, text in self.entries.items() if name not in mine or name in kept},
            )
        else:
            assert len(mine) == self.count, f"{self.path} has more entries than {self.name} asks for"


@pytest.fixture
def says(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Says]:
    asked = Asked(request.node, tmp_path)
    lost = request.config.stash.get(STALE, {}).get(asked.path.parent)
    assert not lost, f"{asked.path} has entries without a test: {lost}"
    yield asked.says
    if asked.writes or asked.count or asked.name in asked.entries:
        asked.finish()


@pytest.fixture
def refused(says: Says) -> Refused:
    @contextmanager
    def refusing() -> Generator[pytest.ExceptionInfo[Exception]]:
        with pytest.raises(Exception) as raised:  # the entry has the type and the text
            yield raised
        says(f"{raised.type.__name__}: {raised.value}")

    return refusing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-messages", action="store_true", help="write what errors say: see tests/messages.py"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse entries without a test, or drop them."""
    config = session.config
    writes = bool(config.getoption("--write-messages"))
    if writes and config.getoption("numprocesses", None):
        raise pytest.UsageError("--write-messages is for one process: leave -n out.")
    named = [*config.args, *(config.getoption("deselect", None) or ())]
    parts = {Path(one.partition("::")[0]).resolve() for one in named if "::" in one}
    chosen = any(config.getoption(one, None) for one in ("keyword", "markexpr", "lf"))
    ids: dict[Path, set[str]] = {}
    for item in session.items:
        ids.setdefault(item.path.parent, set()).add(id_of(item))
    for folder, here in ids.items():
        files = {one.partition("::")[0] for one in here}
        whole = {one for one in files if not chosen and folder / one not in parts}
        entries = read(folder / NAME)
        if found := stale(entries, folder, here, whole):
            if (
                not writes and "PYTEST_XDIST_WORKER" in os.environ
            ):  # an error here would end it without a word
                config.stash.setdefault(STALE, {})[folder] = found
            elif not writes:
                raise pytest.UsageError(
                    f"{folder / NAME} has entries without a test: {', '.join(found)}. Run --write-messages."
                )
            else:
                write(folder / NAME, {name: text for name, text in entries.items() if name not in found})
