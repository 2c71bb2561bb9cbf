"""A chain of two apps, the first in nightly runs: what the second comes to is an oracle's, and so it is
rebuilt.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tailrace.log.embedded import EmbeddedLog
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import append, done, live, live_on, rebuilt
from tests.runtime import chained
from tests.runtime.bounded_run import read_all
from tests.runtime.chained import Window

FIRST, SECOND = "tests.runtime.chained:first", "tests.runtime.chained:second"
NIGHTS = 4
READINGS = [one for number in range(NIGHTS) for one in chained.night(number)]


def windows(folder: Path) -> Counter[Window]:
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return Counter(read_all(log, "windows", Window))


def emitted(folder: Path, order: str) -> Counter[Window]:
    """The windows that a rebuild of the second app emits; along the tape it has the rows of the service."""
    _, snapshot = done(folder, SECOND, order=order, outputs=f"parquet:{folder / order}")
    if order == "tape":
        assert [one.rows for one in rebuilt(snapshot)] == [
            one.rows for one in live(folder, chained.second.plan())
        ]
    again = lived.outputs(folder / order, snapshot, "windows")
    return Counter(msgspec.json.decode(one.value or b"", type=Window) for one in again)


@pytest.mark.parametrize("second", ["nightly", "reads along", "comes later", "never ran"])
def test_a_chain_comes_to_every_window_and_so_do_its_rebuilds(tmp_path: Path, second: str) -> None:
    """Every night some readings come, and the first app is run to the end of them."""
    for number in range(NIGHTS):
        append(tmp_path, chained.records(chained.night(number)), {"left": 3, "right": 3})
        live_on(tmp_path, FIRST)
        if second == "nightly":
            live_on(tmp_path, SECOND)
        elif second == "reads along" or (second == "comes later" and number == NIGHTS - 1):
            live_on(tmp_path, SECOND, ends=False)
    # A bounded run ends the last windows, to which another reading may belong. So does its rebuild in canonical order.
    wanted = chained.expected(READINGS, 1 << 60 if second == "nightly" else READINGS[-1][1].at)
    if second != "never ran":
        assert windows(tmp_path) == wanted
        assert emitted(tmp_path, "tape") == wanted
    assert emitted(tmp_path, "canonical") == wanted
    again = rebuilt(done(tmp_path, FIRST, order="tape")[1])
    assert [one.rows for one in again] == [one.rows for one in live(tmp_path, chained.first.plan())]
