"""Every line of the tables in docs/upgrades.md, tried: a row's first cell is the name of the test that holds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from tailrace.testing import Harness
from tests.core.versions import Fields, Restart, Set, app_of
from tests.docs import upgrades_of_services
from tests.docs.upgrades_of_fields import FADED, LINES, fading

PAGE = Path(__file__).parents[2] / "docs" / "upgrades.md"

TRIED_IN = upgrades_of_services
"""Importing it fills ``LINES``."""


def rows_of_the_page() -> list[str]:
    found: list[str] = []
    for table in re.findall(
        r"^\| change \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE.read_text("utf-8"), re.MULTILINE
    ):
        found += [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()]
    return found


def test_each_row_has_a_test_and_each_test_a_row() -> None:
    rows = rows_of_the_page()
    assert len(rows) == len({*rows})
    assert {*rows} == {*LINES}


@pytest.mark.parametrize("how", ["local", "restored"])
@pytest.mark.parametrize("name", rows_of_the_page())
def test_the_row(name: str, how: Restart) -> None:
    LINES[name](how)


# --- and it is replayed to the byte


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_an_upgrade_of_ttls_and_defaults_is_replayed_byte_for_byte(
    state: Literal["memory", "rocksdb"],
) -> None:
    versions: list[Fields] = [
        {**fading(), "n": (int, 1)},
        {**fading(100), "n": (int, 1)},
        {**fading(300), "n": (int, 2)},
    ]
    start = None
    for number, fields in enumerate(versions):
        app = app_of(fields)
        topic, at = app.topics["told"], number * 50
        with Harness(app, start=start, state=state) as h:
            h.send(topic, *(Set(key, at + 1, {"kept": number + 1, **FADED}) for key in ("a", "b")[number:]))
            h.send(topic, Set("other", at + 40, {"kept": 1}))
            if number == 2:
                h.send(topic, Set("other", 1_000, {"kept": 1}))
                h.advance_clock_by(1_000)
                actor_class: Any = app.actors["Plane"]
                found = cast(Any, h.state(actor_class, "a"))
                assert (found.p, found.n) == (5, 1)
            h.crash()
            h.replay()
            start = h.snapshot()
