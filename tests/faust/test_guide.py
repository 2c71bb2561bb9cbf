"""The app of the guide takes the rows that an import makes."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from tailrace.testing import Harness
from tests.cli.commands import done, records
from tests.docs.page import ROOT, blocks
from tests.faust.test_import import write


def write_module(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a module of a file of the guide."""
    page = (ROOT / "docs/faust.md").read_text("utf-8")
    (code,) = (one.text for one in blocks(page) if one.text.startswith(f"# {name}.py\n"))
    (folder / f"{name}_of_the_guide.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    return f"{name}_of_the_guide"


def test_the_app_of_the_guide_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module("shop", tmp_path, monkeypatch)
    folder = tmp_path / "log"
    done("topics", "apply", "--app", "shop_of_the_guide:app", "--log", folder)
    write(folder, [(1, b'"Ada"', b"3"), (2, b'"Grace"', b"1")])
    done("faust", "import", "shop_of_the_guide:app", "--from", "faust://shop/counts", "--log", folder)
    assert sorted(one.key for _, one in records(folder, "counts")) == [b"Ada", b"Grace"]


def test_batches_and_hours_of_the_guide_are_those_of_plain_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = importlib.import_module(write_module("batches", tmp_path, monkeypatch))
    draw, at_ms, times = random.Random(1), 1_700_000_000_000, list[int]()
    for _ in range(60):
        at_ms += draw.choice((1_000, 4_000, 11_000, 3_600_000))
        times.append(at_ms)
    batches, started = [list[int]()], 0
    for number, at in enumerate(times):
        if batches[-1] and (len(batches[-1]) == 3 or at > started + 10_000):
            batches.append([])
        started = started if batches[-1] else at
        batches[-1].append(number)
    hours = [at // 3_600_000 for at in times]
    with Harness(made.app) as h:
        for number, at in enumerate(times):
            h.send(made.orders, made.Order("Ada", number, at))
        h.end_of_input()
        assert [one.numbers for one in h.emitted(made.batches)] == batches
        assert [(one.current, one.before) for one in h.emitted(made.hours)] == [
            (hours[: n + 1].count(hour), hours[:n].count(hour - 1)) for n, hour in enumerate(hours)
        ]
