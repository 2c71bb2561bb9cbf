"""The unit that replays the history of a few keys and records the state after each step: see ``determinism``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.observer import Call, Watch
from tailrace.core.errors import TailraceError
from tailrace.core.records import RawOutput
from tailrace.history.comparing.states import Recorder
from tailrace.history.driving import TapeSink, drive_along_tape, replay_of
from tailrace.history.rebuilding.job import Unit, UnitResult
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import MemoryStore


class _Hashing(Recorder):
    """Records a hash of the rows and outputs of every step."""

    def returned(self, call: Call, _outputs: Sequence[RawOutput]) -> None:
        """See ``Observer.returned``."""
        if call.actor is not None:
            left = msgspec.msgpack.encode((sorted(call.rows().items()), _outputs))
            said = f"{self._place(call.moment)} ({call.handler})"
            self._note(call.actor, call.moment, said, hashlib.sha256(left).digest()[:8])


def run_trace(unit: Unit, past: HistorySource, _work: WorkFolder, attempt: str) -> UnitResult:
    """Replay the history of some keys, and record the result of each step."""
    result = UnitResult(unit=unit.name, attempt=attempt, partition=unit.partition)
    job, plan, number = unit.job, past.plan, unit.partition
    target = job.targets[number].cut
    if target is None:
        return result
    end, recorder, store = tape.decode_cut(target), _Hashing(plan), MemoryStore()
    begun = past.beginning(job, number)
    cut = begun.load(store).core
    keys = frozenset(_meant(plan, unit.keys))
    replay = replay_of(
        plan,
        number,
        store,
        cut,
        past.source(number),
        lineage=end.lineage,
        watch=Watch(recorder, keys),
        settings=job.request.execution.variant.settings(),
        limit=job.request.limit(number),
        lenient=True,
        any_environment=True,
    )
    drive_along_tape(replay, past.tapes(number, end.tape), end.tape, TapeSink(store))
    result.made = {"tracks": msgspec.msgpack.encode(list(recorder.tracks.items()))}
    return result


def _meant(plan: Plan, keys: Sequence[bytes]) -> Iterator[Any]:
    """All keys of the app's actors that the bytes can mean."""
    for actor in plan.actors:
        for key in keys:
            try:
                yield actor.key_codec.decode(key)
            except (TailraceError, ValueError):
                continue
