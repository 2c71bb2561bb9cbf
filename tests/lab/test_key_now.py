"""``key_now``: the rows of the key whose handler has just run, with its timers, as a commit would store them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.core import rows
from tailrace.core.engine.observer import Call, Observer, key_now, rows_now
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import RawOutput
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tests.history.rebuilding.test_random_lives import lived
from tests.proof.seeds import told


class Compares(Observer):
    """An observer that compares both after each call."""

    compared = timers = 0

    def returned(self, call: Call, _outputs: Sequence[RawOutput], /) -> None:
        """See ``Observer``."""
        if call.actor is None:
            return
        here = key_now(call.cells, call.actor, call.moment.key)
        there = rows.spread(rows_now(call.cells, call.actor, call.moment.key))
        assert _bare(here) == _bare(there)
        self.compared += 1
        self.timers += any(rest[:1] == b"t" for rest in here)


def _bare(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Without the head of the row of the fields, which says where the timers are."""
    return {rest: value if rest else value[rows.start_of_fields(value) :] for rest, value in found.items()}


@pytest.mark.one_seed_in(100)  # one takes 1 s
def test_it_is_what_a_commit_would_store(seeds: range, tmp_path: Path) -> None:
    compares = Compares()
    for seed in seeds:
        trace: list[str] = []
        folder = tmp_path / str(seed)
        with told(seed, trace):
            app = lived(seed, folder, trace)
            log = EmbeddedLog(folder / "log", create=False)
            try:
                replay(app.plan(), log, ReplayOptions(observer=compares, any_environment=True))
            except SnapshotMismatchError:
                continue
            finally:
                log.close()
        shutil.rmtree(folder)
    assert compares.compared
    assert compares.timers
