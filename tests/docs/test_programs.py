"""The programs of docs/programs.md: against plain Python, with crashes, replayed, explored, and type-checked."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.testing import CRASH, END, Harness, Item
from tailrace.testing.exploring.feed import feed_of
from tests.docs.page import ROOT, blocks, write
from tests.docs.program_oracles import ORACLES
from tests.test_examples_explored import History, drawn, undeclared

PAGE = ROOT / "docs" / "programs.md"
UNITS_MS = 20_000, 240_000, 7_200_000
UNORDERED_INPUTS = {"p11_rules"}
"""Programs whose results depend on what arrives first; here the rules arrive before everything else."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page."""
    found: Path = tmp_path_factory.mktemp("programs")
    for block in blocks(PAGE.read_text("utf-8")):
        if block.kind == "python":
            write(block, found)
    return found


@pytest.fixture
def program(
    folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(folder)
    for name in ("events", request.param):
        sys.modules.pop(name, None)
    module = importlib.import_module(request.param)
    yield module
    for name in ("events", request.param):
        sys.modules.pop(name, None)


def test_every_program_of_the_page_has_an_oracle(folder: Path) -> None:
    assert sorted(ORACLES) == sorted(path.stem for path in folder.glob("p*.py"))
    assert len(ORACLES) == 15


def history_of(program: ModuleType, unit_ms: int) -> History:
    """Drawn events, out of order by no more than is declared. Rules come first."""
    history = drawn(program.app.plan(), unit_ms)
    return (
        sorted(history, key=lambda one: one[0].name != "rules")
        if program.__name__ in UNORDERED_INPUTS
        else history
    )


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("unit_ms", UNITS_MS)
@pytest.mark.parametrize("program", sorted(ORACLES), indirect=True)
def test_a_program_gives_what_plain_python_gives(program: ModuleType, unit_ms: int, checked: bool) -> None:
    app: tr.App = program.app
    history = history_of(program, unit_ms)
    sent: dict[str, list[Any]] = defaultdict(list)
    for topic, event in history:
        sent[topic.name].append(event)
    wanted = ORACLES[program.__name__](sent, sys.modules["events"])
    assert any(wanted.values()), "the oracle expects nothing: the events are too few"
    items: list[Item] = list(history)
    for place in sorted(Random(unit_ms).sample(range(len(items)), 5), reverse=True):
        items.insert(place, CRASH)
    with Harness(app, checked=checked) as h:
        h.run([*items, END])
        for name, events in wanted.items():
            found = h.emitted(app.topics[name])
            assert sorted(found, key=repr) == sorted(events, key=repr), name
        assert h.dropped == 0
        h.replay()


@pytest.mark.parametrize("program", sorted(ORACLES), indirect=True)
def test_no_schedule_changes_what_a_program_gives(program: ModuleType) -> None:
    plan = program.app.plan()
    history = history_of(program, UNITS_MS[1])
    outputs = [Output(topic.name, topic.encode_key(one), topic.encode(one), 0) for topic, one in history]
    assert undeclared(plan, feed_of(plan, outputs)) == []


def test_the_programs_pass_a_strict_type_checker(folder: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            *sorted(map(str, folder.glob("*.py"))),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.stdout == "", done.stdout
    assert done.returncode == 0, done.stderr
