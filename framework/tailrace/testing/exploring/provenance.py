"""Follows a difference in the state of a key back, field by field, to the step that caused it.

A *label* is a plain field, an entry of a collection or a timer. If a label differs after two tracks, the last
step that changed it in each of them shows the cause:

    two steps       they came in the opposite order, or only one run has one of them
    the same step   the label differed before it, or the step read a different value from its context, or
                    another label differed before it. If nothing differed, the handler uses more than its
                    state. If only an expiry differs, its time to live was counted from another watermark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tailrace.core import rows
from tailrace.core.engine.value_rows import raw_fields
from tailrace.testing.exploring.tracks import Divergence, Id, Numbered, TraceStep, TrackId, varying

Label: TypeAlias = tuple[str, bytes]
State: TypeAlias = dict[Label, bytes]


def origin_of_state(place: TrackId, one: Numbered, other: Numbered, start: int) -> Divergence | None:
    """The divergence that made the states after two tracks differ; None if they are equal, or were not
    recorded.

    After ``start`` steps the states were equal.
    """
    return _Origin(place, one, other, start).find()


class _Origin:
    def __init__(self, place: TrackId, one: Numbered, other: Numbered, start: int) -> None:
        self._place = place
        self._start = start
        self._sides = (one, other)
        self._states = tuple(list(_states(side)) for side in self._sides)
        self._at = tuple({step_id: at for at, (step_id, _) in enumerate(side)} for side in self._sides)

    def find(self) -> Divergence | None:
        ends = (len(self._sides[0]), len(self._sides[1]))
        labels = self._differing(ends)
        return self._of(labels[0], ends) if labels else None

    def _state(self, side: int, at: int) -> State:
        """The state after ``at`` steps."""
        return self._states[side][at - 1] if at else {}

    def _differing(self, ends: tuple[int, int]) -> list[Label]:
        was, now = (self._state(side, ends[side]) for side in (0, 1))
        return sorted(label for label in was.keys() | now.keys() if was.get(label) != now.get(label))

    def _of(self, label: Label, ends: tuple[int, int]) -> Divergence | None:
        while True:
            writers = [self._last_writer(side, label, ends[side]) for side in (0, 1)]
            side = 0 if writers[0] is not None else 1
            at = writers[side]
            if at is None:
                return None
            step_id, step = self._sides[side][at]
            there = self._at[1 - side].get(step_id, ends[1 - side])
            if writers[1 - side] is not None and writers[1 - side] != there:
                return self._two_writers(writers, ends)
            if there >= ends[1 - side]:
                return self._one_writer(side, step_id, step, ends)
            # The same step: compare the states before it, and what it read from its context.
            before = (at, there) if side == 0 else (there, at)
            labels = self._differing(before)
            pair = (self._sides[0][before[0]][1], self._sides[1][before[1]][1])
            if label not in labels:
                if self._is_time_to_live(label, ends):
                    return Divergence("time to live", self._place, 0, *pair)
                if varying(*pair) or not labels:
                    return Divergence("result", self._place, 0, *pair)
                label = labels[0]
            ends = before

    def _is_time_to_live(self, label: Label, ends: tuple[int, int]) -> bool:
        """Whether two states differ only in the expiry of a field or an entry."""
        was, now = (self._state(side, ends[side]).get(label) for side in (0, 1))
        kind, rest = label
        if kind == "field" or was is None or now is None:
            return False
        if rest[:1] == b"t":
            return rest[2:3] == rows.EXPIRY
        return rows.unpack_entry(was)[0] == rows.unpack_entry(now)[0]

    def _last_writer(self, side: int, label: Label, end: int) -> int | None:
        for at in range(end - 1, self._start - 1, -1):
            if self._state(side, at).get(label) != self._state(side, at + 1).get(label):
                return at
        return None

    def _two_writers(self, writers: list[int | None], ends: tuple[int, int]) -> Divergence:
        """The last writers differ: their order of arrival decided which of them came last."""
        assert writers[0] is not None
        assert writers[1] is not None
        (id_0, step_0), (id_1, step_1) = self._sides[0][writers[0]], self._sides[1][writers[1]]
        if self._at[0].get(id_1, ends[0]) < writers[0] or id_0 in self._at[1]:
            return Divergence("order", self._place, 0, step_1, step_0)
        return self._one_writer(0, id_0, step_0, ends)

    def _one_writer(self, side: int, step_id: Id, step: TraceStep, ends: tuple[int, int]) -> Divergence:
        """A divergence for a step that the other run does not have, or does not have yet."""
        if step_id not in self._at[1 - side] or not ends[1 - side]:
            return Divergence("missing", self._place, side, step, None)
        return Divergence("order", self._place, side, step, self._sides[1 - side][ends[1 - side] - 1][1])


def _states(steps: Numbered) -> Iterator[State]:
    """The state after each step. An expiry removes one label."""
    state: State = {}
    for _, step in steps:
        if step.after is not None:
            state = {}
            for rest, value in step.after:
                if rest:
                    state["row", rest] = value
                else:
                    state |= {("field", name.encode()): one for name, one in raw_fields(value[1:]).items()}
        elif step.cause[0] == "expiry":
            gone = step.cause[2]
            expired = ("field", gone[1:]) if gone[:1] == b"v" else ("row", gone)
            state = {label: value for label, value in state.items() if label != expired}
        yield state
