"""What a rebuilt snapshot of the app of payments holds, and what its rebuild has emitted."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailrace.core import rows
from tailrace.core.engine.describe_rows import picture
from tailrace.core.values.keys import key_codec_for
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshot
from tests.history.rebuilding import lived
from tests.history.rebuilding.payments import Window

APP = "tests.history.rebuilding.payments:app"


def stored(snapshot: Snapshot) -> tuple[dict[str, int], dict[str, int]]:
    """The totals of accounts and regions."""
    found: dict[str, dict[str, int]] = {"Account": {}, "Region": {}}
    actors = {one.name: one for one in find_app(APP).plan().actors}
    for number in range(snapshot.manifest.partitions):
        for row, value in snapshot.rows(number):
            if row[:1] != rows.STATE:
                continue
            parts = rows.read_state_row(row)
            if not parts.rest and parts.actor != "Desk":
                said = picture(actors[parts.actor], {b"": value})
                found[parts.actor][key_codec_for(str).decode(parts.key)] = int(said["total"])
    return found["Account"], found["Region"]


def outputs_of(folder: Path, snapshot: Snapshot) -> dict[tuple[str, int], int]:
    """What a rebuild has made of the windows: each once."""
    found: dict[tuple[str, int], int] = {}
    for output in lived.outputs(folder / "outputs", snapshot, "windows"):
        window = msgspec.json.decode(output.value or b"", type=Window)
        assert (window.region, window.end) not in found, "twice"
        found[window.region, window.end] = window.amount
    return found
