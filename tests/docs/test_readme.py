"""The README's program alerts as a loop over the sorted payments does, and its picture shows what the commands print."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from tailrace.demo import cards as demo_cards
from tailrace.demo import history
from tailrace.testing import Harness
from tests.docs.page import ROOT

HOUR_MS = 3_600_000
LIMIT = 100_000
Paid = tuple[str, int, int]
"""A card, a time and an amount in cents."""


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def terminal() -> ModuleType:
    """The script that draws the picture."""
    return loaded(ROOT / "docs" / "pictures" / "terminal.py")


@pytest.fixture(scope="module")
def cards(terminal: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The code of the README."""
    file: Path = tmp_path_factory.mktemp("readme") / "readme_cards.py"
    file.write_text(terminal.code(), "utf-8")
    return loaded(file)


def expected(payments: Iterable[Paid]) -> list[Paid]:
    """The alerts, as a loop over the sorted payments finds them. An hour begins with a payment and includes its end."""
    found: list[Paid] = []
    begun: dict[str, int] = {}
    spent: dict[str, int] = {}
    for card, at_ms, cents in sorted(payments, key=lambda one: one[1]):
        if card not in begun or at_ms > begun[card] + HOUR_MS:
            begun[card], spent[card] = at_ms, 0
        spent[card] += cents
        if spent[card] > LIMIT:
            found.append((card, at_ms, cents))
    return sorted(found)


@pytest.mark.parametrize("number", [1, 3], ids=["one card", "three cards"])
@pytest.mark.parametrize("seed", range(5))
def test_the_alerts_are_those_of_a_loop_over_the_sorted_payments(
    cards: ModuleType, number: int, seed: int
) -> None:
    random = Random(f"{number} cards, {seed}")
    times = sorted(random.randrange(0, 6 * HOUR_MS, 60_000) for _ in range(120))
    payments = [(f"c{random.randrange(number)}", at_ms, random.randrange(1, 40_000)) for at_ms in times]
    arrivals = sorted(range(len(times)), key=lambda one: (times[one] + random.randrange(600_000), one))
    with Harness(cards.app, partitions=1) as h:
        h.send(cards.payments, *(cards.Payment(*payments[one]) for one in arrivals))
        h.crash()
        h.end_of_input()
        assert h.late == 0
        h.replay()
        found = sorted((one.card, one.at_ms, one.cents) for one in h.emitted(cards.alerts))
    assert len(found) > 5
    # Payments of one moment are handled in the order of their arrival, and so are they sorted.
    assert found == expected(payments[one] for one in arrivals)


@pytest.mark.nightly
def test_the_picture_of_a_terminal_shows_what_the_commands_print(
    terminal: ModuleType, tmp_path: Path
) -> None:
    steps = terminal.session(tmp_path)
    assert shown(terminal.drawing(steps)) == shown(terminal.PICTURE.read_text("utf-8"))
    found = sorted((one["card"], one["at_ms"], one["cents"]) for one in terminal.alerts(tmp_path))
    assert found == expected(terminal.payments(terminal.PAYMENTS)[: terminal.PAYMENTS])


def test_the_demo_runs_the_code_of_the_readme_and_expects_the_same_alerts(terminal: ModuleType) -> None:
    _, _, code = Path(demo_cards.__file__).read_text("utf-8").partition("\n\n")
    assert code == terminal.code().partition("\n")[2]
    paid = history.payments(20_000)
    assert len(found := history.expected(paid)) > 10
    assert found == expected(paid)


def shown(svg: str) -> list[str]:
    """The texts of a picture in their order. Counts and times differ from run to run."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    return [re.sub(r"[\d,.]+", "0", one.replace("&#160;", " ").strip()) for one in texts]
