"""``key_now``: the rows of the key whose handler is about to run, or has just run, with its timers, as a commit would store them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.core import rows
from tailrace.core.engine.observer import Call, Observer, key_now
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import RawOutput
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tests.cast.programs import lived
from tests.lab.rows_now import rows_now
from tests.proof.seeds import told


class Compares(Observer):
    """An observer that compares both after each call."""

    compared = timers = 0

    def begins(self, call: Call, /) -> None:
        """See ``Observer``. The key may not be in memory yet."""
        if call.actor is not None:
            self._compare(call)

    def returned(self, call: Call, _outputs: Sequence[RawOutput], /) -> None:
        """See ``Observer``."""
        if call.actor is not None:
            self.timers += any(rest[:1] == b"t" for rest in self._compare(call))

    def _compare(self, call: Call) -> dict[bytes, bytes]:
        assert call.actor is not None
        here = key_now(call.cells, call.actor, call.moment.key)
        there = rows.spread(rows_now(call.cells, call.actor, call.moment.key))
        assert _bare(here) == _bare(there)
        self.compared += 1
        return here


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
