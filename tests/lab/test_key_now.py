"""``key_now``: the rows of the key whose handler is about to run, or has just run, with its timers, as a commit would store them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.observer import Call, Observer, key_now, stored_now
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import RawOutput
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tests.cast.programs import lived
from tests.proof.seeds import told


def rows_now(cells: InstanceCache, actor: ActorPlan, key: Any) -> KeyRows:
    """The rows of a key from all that a commit now would write: slow. Call it only between two calls of handlers."""
    prefix = rows.actor_prefix(actor.name) + rows.escaped(actor.key_codec.encode(key))
    found = {row[len(prefix) :]: value for row, value in cells.state.scan(prefix, rows.prefix_end(prefix))}
    for row, value in cells.collect()[0].items():
        if row.startswith(prefix):
            if value is None:
                found.pop(row[len(prefix) :], None)
            else:
                found[row[len(prefix) :]] = value
    return found


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
        stored = stored_now(
            call.cells, call.actor, call.moment.key
        )  # without timers, for the state as of a time
        assert _without_timers(_bare(stored)) == _without_timers(_bare(there))
        self.compared += 1
        return here


def _bare(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Without the head of the row of the fields, which says where the timers are."""
    return {rest: value if rest else value[rows.start_of_fields(value) :] for rest, value in found.items()}


def _without_timers(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {rest: value for rest, value in found.items() if rest[:1] != b"t"}


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
