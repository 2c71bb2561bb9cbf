"""A law on the documentation and on texts in the code: plain technical English, without archaic words and riddles.

``WORDING`` lists words and phrases that a reader with English as a second language has to read twice, and what to write instead.
The tests search the prose of Markdown pages (without code blocks, inline code and the targets of links), and the docstrings,
comments and messages in the modules of the framework, the services and the schemas.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.documentation import PAGES, ROOT, name_of

MODULES: Final = sorted(
    path for room in ("framework/tailrace", "services", "schemas") for path in (ROOT / room).rglob("*.py")
)


class Wording(NamedTuple):
    """``pattern`` is a regular expression for prose in which a line break is a blank; case does not matter."""

    pattern: str
    instead: str
    example: str
    """A sentence that the pattern must find."""


WORDING: Final = (
    Wording(r"\banew\b", "again, from the beginning", "The state is built anew."),
    Wording(r"\bmend(s|ed|ing)?\b", "fix, repair, correct", "Mend the cause."),
    Wording(r"\bfor ?ever\b", "always, without a limit", "It is kept for ever."),
    Wording(r"\b(told|tell(s|ing)? of)\b", "gets, receives; a message says; logs", "The reader is told."),
    Wording(r"\bsaid\b", "given, set, declared, logged, run (again)", "Four, unless it is said."),
    Wording(r"\bwhoever\b", "the caller; a reader that ...", "Whoever takes it closes it."),
    Wording(r"\bas (it was|they were) found\b", "unchanged", "The folder is left as it was found."),
    Wording(r"\b(let|lets|letting) go of\b", "release, close", "It lets go of the folder."),
    Wording(r"\b(not )?at hand\b", "available", "The code is not at hand."),
    Wording(r"\breckon(s|ed|ing)?\b", "compute", "Reckoned from the first watermark."),
    Wording(r"\b(build|builds|built|building) upon\b", "build on", "It builds upon the full one."),
    Wording(r"\b(go|goes|going|gone|went) on\b", "continues, resumes", "The service goes\non where it was."),
    Wording(r"\bsay (?=`|it again|the same)", "run, use (a command, an option)", "Now say `make test`."),
    Wording(r"\bunless (one|you) says? otherwise\b", "by default", "Once a second unless you say otherwise."),
    Wording(
        r"(^|[.:;] )who (?!may |can |must )\w+s\b", "the caller; a reader that ...", "It is open. Who takes it closes it."
    ),
    Wording(r"\bheld against\b|\bholds? [^.]{1,40} against\b", "compared with", "It holds the rows against the log."),
    Wording(r"\b(had|has had|have had) an influence\b", "affected; is a cause", "All that had an influence."),
    Wording(r"\b(is|are) on record\b", "is recorded", "All causes are on record."),
    Wording(r"\bnobody's business\b", "must not affect the result", "That is nobody's business."),
    Wording(r"\bmade again\b", "rebuilt", "The state is made again."),
    Wording(r"\bpass(es|ed)? over\b", "skip", "Other apps pass over it."),
    Wording(r"\b(falls?|fallen|fell) idle\b", "becomes idle", "The input falls idle."),
    Wording(r"\bdone again\b", "repeated, replayed", "What was not committed is done again."),
    Wording(r"\bof (what is )?above\b", "described above", "The random apps of above."),
    Wording(r"\b(lest|hence|thereof|therein|whence|hitherto|betwixt)\b", "so, of it, in it, until now", "Hence the name."),
)  # fmt: skip


def prose(markdown: str) -> str:
    """The text without code, comments and link targets. Line breaks are kept, so line numbers stay right."""
    code = re.compile(r"```.*?```|<!--.*?-->|``.*?``|`[^`]*`|\]\([^)\s]*\)", re.DOTALL)
    return code.sub(lambda found: "`" + "\n" * found[0].count("\n"), markdown)


def found_in(markdown: str, first_line: int = 1) -> list[str]:
    """Each place in a text with wording to replace: its line, its words, and what to write instead."""
    text = prose(markdown)
    flat = text.replace("\n", " ")
    found = [
        (text.count("\n", 0, place.start()) + first_line, place[0].strip(), wording.instead)
        for wording in WORDING
        for place in re.finditer(wording.pattern, flat, re.IGNORECASE)
    ]
    return [f"line {line}: {words!r}; write: {instead}" for line, words, instead in sorted(found)]


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings, comments and messages of a module (strings with a blank), each with its line, without the values in f-strings."""
    module = ast.parse(source)
    formatted = [node for node in ast.walk(module) if isinstance(node, ast.JoinedStr)]
    parts = {part for node in formatted for part in ast.walk(node)}
    for node in formatted:
        yield (
            node.lineno,
            "".join(str(part.value) if isinstance(part, ast.Constant) else "`value`" for part in node.values),
        )
    for each in ast.walk(module):
        if (
            isinstance(each, ast.Constant)
            and isinstance(each.value, str)
            and " " in each.value
            and each not in parts
        ):
            yield each.lineno, each.value
    comment, begun, ended = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("# ")
            if line != ended + 1:
                yield begun, comment
                comment, begun = "", line
            comment, ended = f"{comment}\n{text}", line
    yield begun, comment


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_written_in_plain_words(page: Path) -> None:
    found = found_in(page.read_text("utf-8"))
    assert not found, f"{name_of(page)}:\n" + "\n".join(found)


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_the_texts_of_a_module_are_written_in_plain_words(module: Path) -> None:
    found = [each for line, text in texts_of(module.read_text("utf-8")) for each in found_in(text, line)]
    assert not found, f"{name_of(module)}:\n" + "\n".join(found)


def test_a_word_is_found_in_docstrings_comments_and_messages_and_not_in_code() -> None:
    source = '''"""The state is\nbuilt anew."""
# The state is
# built anew.
x = anew(f"{mend(x)}")  # built anew
raise ValueError(f"{x} is built " "anew")
raise ValueError("built anew")'''
    assert len([found for _, text in texts_of(source) for found in found_in(text)]) == 5


@pytest.mark.parametrize("wording", WORDING, ids=lambda wording: wording.instead)
def test_each_wording_can_be_found(wording: Wording) -> None:
    (found,) = found_in(wording.example)
    assert wording.instead in found


def test_code_links_and_parts_of_words_are_not_found() -> None:
    page = """See [this page](docs/anew.md). The option `--forever` keeps all records.
```text
the log goes on
```
The message recommends an amended version. The reader who asks gets an answer. The service
goes on."""
    assert [found.partition(":")[0] for found in found_in(page)] == ["line 6"]
