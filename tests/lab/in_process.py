"""Comparisons of versions whose sides are in this process: their modules have different names."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest

from tailrace.history.rebuilding.request import Source
from tailrace.history.rebuilding.results import Failure
from tailrace.lab import comparison as both
from tailrace.lab.ab import compare_versions
from tailrace.lab.comparison import AbReport, Wanted
from tailrace.lab.side import answer
from tailrace.lab.versions import Place
from tailrace.state.snapshots.arrow import parquet

T = TypeVar("T")
_TURNS = Lock()


class Here:
    """A version in this process."""

    tasks: list[str]
    """What all of them were asked."""
    modules: ClassVar[dict[str, str]] = {}
    """By side, its module, which is not loaded in the process of the other one."""

    def __init__(self, name: str, place: Place, _python: str = "", *, hash_seed: int = 0) -> None:
        self.name, self.place, self.hash_seed = name, place, hash_seed

    def ask(self, task: str, expected: type[T], **given: Any) -> T:
        """See ``Version.ask``."""
        Here.tasks.append(f"{self.name} {task}")
        with _TURNS:  # processes share nothing; in one, all take turns
            if (root := str(self.place.root)) not in sys.path:
                sys.path.insert(0, root)
            Here.modules[self.name] = own = self.place.reference.partition(":")[0]
            hidden = {
                one: sys.modules.pop(one)
                for one in Here.modules.values()
                if one != own and one in sys.modules
            }
            try:
                line = answer(self.place.reference, msgspec.json.encode((task, given)))
            finally:
                sys.modules.update(hidden)
        failure, value = msgspec.json.decode(line, type=tuple[Failure | None, msgspec.Raw])
        if failure is not None:
            error = failure.error()
            error.what = f"{self.name}: {error.what}"
            raise error
        return msgspec.json.decode(value, type=expected)

    def kill(self) -> None:
        """What it does ends by itself."""

    def close(self) -> None:
        """Nothing is open."""


def comparison(
    monkeypatch: pytest.MonkeyPatch, folder: Path, a: str, b: str, **options: Any
) -> tuple[AbReport, list[dict[str, Any]], list[dict[str, Any]]]:
    """Compare two versions over the log of a folder: the report, and the rows of both tables."""
    monkeypatch.setattr(both, "Version", Here)
    Here.tasks = []
    to = Path(options.pop("to", folder / f"ab-{sum(1 for _ in folder.glob('ab-*'))}"))
    source = options.pop("source", Source(log=str(folder / "log")))
    wanted = Wanted(a=a, b=b, source=source, to=str(to), workers=1, **options)
    report = compare_versions(wanted)
    tables = [
        parquet.read_table(to / f"{one}.parquet").to_pylist()
        for one in ("differences", "outputs_differences")
    ]
    return report, tables[0], tables[1]
