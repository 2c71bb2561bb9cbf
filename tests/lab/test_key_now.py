"""``key_now``: the rows of the key whose handler is about to run, or has just run, as a commit would store them; and runs that observe some keys.

First events are searched by such runs: they must show of these keys what a run of all keys shows. And the digest that is kept from
call to call, by what may have changed, is that of all of these rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.observer import Call, Moment, Observer, key_now, stored_now
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.records import RawOutput
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.lab.first_events import Contents
from tailrace.log.embedded import EmbeddedLog
from tests.cast.programs import lived
from tests.proof.apps import Variant
from tests.proof.seeds import told, variant_of


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


class Records(Observer):
    """Records each call, what it returns with, and the rows of its key after it, which it compares with ``rows_now`` (also before)."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.timers = 0
        self._kept: dict[tuple[str, bool], Contents] = {}

    def begins(self, call: Call, /) -> None:
        """See ``Observer``. The key may not be in memory yet."""
        self._rows(call)

    def returned(self, call: Call, outputs: Sequence[RawOutput], /) -> None:
        """See ``Observer``."""
        one, found = call.moment, self._rows(call)
        self.timers += any(rest[:1] == b"t" for rest in found)
        times = one.event_time, one.watermark, one.now, one.is_late
        self.calls.append((one.key, call.handler, one.input, one.at, times, [*outputs], found))
        if call.actor is not None:
            self._compare_digests(call, call.actor)

    def _compare_digests(self, call: Call, actor: ActorPlan) -> None:
        for some in (False, True):
            kept, whole = self._contents(actor, some=some), _contents(actor, some=some)
            assert kept.now(call.cells, call.moment.key) == whole.now(call.cells, call.moment.key)

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes, /) -> None:
        """See ``Observer``."""
        for some in (False, True):
            self._contents(actor, some=some).expired(moment.key, what)

    def _contents(self, actor: ActorPlan, *, some: bool) -> Contents:
        return self._kept.setdefault((actor.name, some), _contents(actor, some=some))

    def _rows(self, call: Call) -> dict[bytes, bytes]:
        if call.actor is None:
            return {}
        key = call.moment.key
        here, there = key_now(call.cells, call.actor, key), rows_now(call.cells, call.actor, key)
        assert _bare(here) == _bare(rows.spread(there))
        stored = stored_now(call.cells, call.actor, key)  # without timers, for the state as of a time
        assert _without_timers(_bare(stored)) == _without_timers(_bare(there))
        return here


def _contents(actor: ActorPlan, *, some: bool) -> Contents:
    """What digests all rows at its first call. ``some``: the other version has every second field."""
    return Contents(actor, [one.name for one in actor.schema.fields[::2]] if some else None)


def _bare(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Without the head of the row of the fields, which says where the timers are."""
    return {rest: value if rest else value[rows.start_of_fields(value) :] for rest, value in found.items()}


def _without_timers(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {rest: value for rest, value in found.items() if rest[:1] != b"t"}


def ordered(random: Random) -> Variant:
    """A variant whose actors handle events in the order of event time."""
    return variant_of(random, inputs=random.choice((1, 2)))._replace(order="event-time")


@pytest.mark.one_seed_in(25)  # one takes 2 s
def test_rows_are_what_a_commit_would_store_and_the_calls_of_some_keys_are_those_among_all(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if events of other keys wait for their turn, and the watermark goes up to them when all inputs are idle."""
    calls = timers = 0
    for seed in seeds:
        trace: list[str] = []
        folder = tmp_path / str(seed)
        with told(seed, trace), monkeypatch.context() as patch:
            if not seed % 2:
                patch.setattr("tests.proof.seeds.variant_of", ordered)
            plan = lived(seed, folder, trace).plan()
            log, every, some = EmbeddedLog(folder / "log", create=False), Records(), Records()
            try:
                replay(plan, log, ReplayOptions(observer=every, any_environment=True))
                found = sorted({one[0] for one in every.calls}, key=repr)
                keys = Random(seed).sample(found, len(found) // 2)
                replay(plan, log, ReplayOptions(observer=some, keys=keys, any_environment=True))
            except SnapshotMismatchError:
                continue  # it has never committed
            finally:
                log.close()
            assert some.calls == [one for one in every.calls if one[0] in keys]
            calls += len(some.calls)
            timers += every.timers
        shutil.rmtree(folder)
    assert calls
    assert timers
