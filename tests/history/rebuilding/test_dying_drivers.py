"""The driver publishes last of all: wherever it dies nothing half is seen, and whoever goes on comes to the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.output_files import MANIFEST, OutputsManifest
from tailrace.history.rebuilding.request import PARQUET, Request
from tailrace.state.snapshots import Snapshots
from tests.cast.apps import place
from tests.cast.test_matrix import lived
from tests.history.rebuilding.lived import live, opened, rebuilt, request
from tests.history.rebuilding.struck_engines import Stopping
from tests.runtime.processes import ROOT

POINTS = 8


@contextmanager
def drivers(asked: Request, place: Path) -> Generator[subprocess.Popen[str]]:
    place.write_bytes(msgspec.msgpack.encode(asked))
    command = [sys.executable, "-m", "tests.history.rebuilding.dying", str(place)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], point: int) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{point}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def published(asked: Request) -> int:
    """The snapshots that can be seen: each is whole, and has its outputs."""
    snapshots, outputs = Snapshots(asked.to.uri, "orders"), Path(asked.to.outputs.removeprefix(PARQUET))
    for manifest in snapshots.list():
        assert snapshots.open(manifest.id).verify() == []
        folder = outputs / "orders" / manifest.id
        named = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=OutputsManifest)
        assert {one.name for one in folder.iterdir()} == {MANIFEST, *(one.name for one in named.files)}
    return len(snapshots.list())


def test_a_driver_that_dies_at_any_point_has_published_nothing_or_all(tmp_path: Path) -> None:
    folder, kept = tmp_path / "life", tmp_path / "kept"
    with lived("orders", 2, folder) as (_, _, world):
        world.rest(ends=True)
        truth = live(folder, world.plan)
        asked = request(
            folder, place("orders", 2), order="tape", outputs=f"{PARQUET}{folder / 'snapshots' / 'out'}"
        )
        to = Path(asked.to.uri)
        with pytest.raises(InterruptedError):
            rebuild(asked, Stopping(world.plan.partitions))
        shutil.copytree(to, kept)
        outcomes: list[bool] = []
        with drivers(asked, tmp_path / "request") as process:
            total = int(ask(process, 10**9))
            for point in sorted({*range(1, total, total // POINTS), *range(total - POINTS, total + 1, 2)}):
                shutil.rmtree(to)
                shutil.copytree(kept, to)
                assert ask(process, point) == "killed"
                seen = published(asked)
                outcomes.append(bool(seen))
                report = rebuild(asked, LocalEngine(1))
                # One that dies when it has published may have forgotten that it did, and does it all once more.
                assert published(asked) in (1, 1 + seen)
                assert rebuilt(opened(asked, report)) == truth, f"killed at line {point}"
    assert outcomes == sorted(outcomes), "published once and for all"
    assert {*outcomes} == {False, True}
