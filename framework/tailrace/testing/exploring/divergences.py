"""Finds where two runs part: the first step of a key that made a difference, and of what kind it is.

Two tracks of a key may differ in order without a difference in effect, for example if events of two inputs
are only counted. So the tracks are walked from one *agreement* to the next, at which both have handled the
same steps, emitted the same outputs and left the same state. The steps after the last one hold the cause:

    result     the same step on the same state had another result: the handler uses more than its event
    missing    a step that the other run does not have: a late event was dropped, or its writer wrote another
               record
    order      two steps were handled in the opposite order, and one of them had another result

A record that the app wrote itself is followed back to its writer, to the place where the difference begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

from tailrace.testing.exploring.provenance import origin_of_state
from tailrace.testing.exploring.tracks import Divergence, Id, Numbered, Trace, TraceStep, TrackId, numbered


class Divergences:
    """Finds where two runs part. ``visited`` has the places whose tracks were compared."""

    def __init__(self, traces: tuple[Trace, Trace]) -> None:
        self.traces = traces
        self.visited: dict[TrackId, Divergence | None] = {}
        self._writers = [_places(one, lambda step: (sent[:3] for sent in step.outputs)) for one in traces]
        self._of_cause = [_places(one, lambda step: (step.cause,)) for one in traces]

    def of(self, place: TrackId) -> Divergence | None:
        """The divergence that caused the difference of this key; None if its tracks agree."""
        if place in self.visited:
            return self.visited[place]
        self.visited[place] = None  # in a circle of writers, the difference began elsewhere
        found = first_divergence(place, *(numbered(trace.track(place)) for trace in self.traces))
        self.visited[place] = found
        if found is not None and found.kind == "missing":
            found = self.visited[place] = self._written(found)
        return found

    def writers(self, side: int, topic: str, key: bytes | None, value: bytes) -> list[TrackId]:
        """The places that emitted an output in a run."""
        return self._writers[side].get((topic, key, value), [])

    def _written(self, found: Divergence) -> Divergence:
        """Follow a step that only one run has back to the writer of its record or stream event."""
        step = found.step
        places: list[TrackId] = []
        if step.of_stream:
            places = self._of_cause[found.side].get(step.cause, [])
        elif step.cause[0] == "written":
            places = self._writers[found.side].get(step.cause[1:4], [])
        for place in places:
            if place != found.place and (before := self.of(place)) is not None:
                return before
        return found


def first_divergence(place: TrackId, one: Numbered, other: Numbered) -> Divergence | None:
    """Where two tracks of a key part, without regard to other keys."""
    start = 0
    while True:
        while (
            start < min(len(one), len(other))
            and one[start][0] == other[start][0]
            and one[start][1].effect == other[start][1].effect
        ):
            start += 1
        if start == len(one) == len(other):
            return None
        if start < min(len(one), len(other)) and one[start][0] == other[start][0]:
            step, there = one[start][1], other[start][1]
            same = step.outputs == there.outputs  # only the state differs, and perhaps only by a time to live
            found = origin_of_state(place, one[: start + 1], other[: start + 1], start) if same else None
            return found or Divergence("result", place, 0, step, there)
        agreement = _agreement(one, other, start)
        if agreement is None:
            return _order(place, one, other, start)
        start = agreement


def _agreement(one: Numbered, other: Numbered, start: int) -> int | None:
    """Number of steps after which both tracks have handled the same; None if their results differ there."""
    open_steps: Counter[Id] = Counter()
    for at in range(start, min(len(one), len(other))):
        for (step_id, _), sign in ((one[at], 1), (other[at], -1)):
            open_steps[step_id] += sign
            if not open_steps[step_id]:
                del open_steps[step_id]
        if not open_steps:
            same_state = one[at][1].after == other[at][1].after
            same_outputs = _by_key(one[start : at + 1]) == _by_key(other[start : at + 1])
            return at + 1 if same_state and same_outputs else None
    return None


def _by_key(steps: Numbered) -> dict[tuple[str, bytes | None], list[tuple[bytes | None, int]]]:
    found: dict[tuple[str, bytes | None], list[tuple[bytes | None, int]]] = {}
    for _, step in steps:
        for topic, key, value, time_ms, _ in step.outputs:
            found.setdefault((topic, key), []).append((value, time_ms))
    return found


def _order(place: TrackId, all_one: Numbered, all_other: Numbered, start: int) -> Divergence:
    """Find the two steps in opposite order, or the step of only one track, after the last agreement."""
    sides = one, other = all_one[start:], all_other[start:]
    maps = (dict(one), dict(other))
    for side in (0, 1):
        if sides[side] and _is_only_here(sides[side][0], maps[1 - side]):
            return Divergence("missing", place, side, sides[side][0][1], None)
    # The outputs of a timer show most: they depend on the state at one instant.
    for is_timer in (True, False):
        for at in range(max(len(one), len(other))):
            for side in (1, 0):
                if at >= len(sides[side]) or sides[side][at][1].is_timer is not is_timer:
                    continue
                if _shows(sides[side][at], maps[1 - side]):
                    found = _before(place, sides, side, sides[side][at])
                    if found is not None:
                        return found
    # No output shows the cause: look for a step of only one run, then for the origin of the state.
    for side in (0, 1):
        for each in sides[side]:
            if _is_only_here(each, maps[1 - side]):
                return Divergence("missing", place, side, each[1], None)
    found = origin_of_state(place, all_one, all_other, start)
    if found is not None:
        return found
    if one and other:
        return Divergence("order", place, 0, one[0][1], other[0][1])
    side = 0 if one else 1
    return Divergence("missing", place, side, sides[side][0][1], None)


def _is_only_here(step: tuple[Id, TraceStep], there: dict[Id, TraceStep]) -> bool:
    """Whether a step is a record that the other run has not handled.

    Timers do not count: a missing timer has a cause itself.
    """
    return step[0] not in there and not step[1].is_timer


def _shows(step: tuple[Id, TraceStep], there: dict[Id, TraceStep]) -> bool:
    """Whether a step's outputs differ from the other run's; for a step missing there, whether it has any."""
    found = there.get(step[0])
    return bool(step[1].outputs) if found is None else step[1].outputs != found.outputs


def _before(
    place: TrackId, sides: tuple[Numbered, Numbered], side: int, step: tuple[Id, TraceStep]
) -> Divergence | None:
    """Find the step that came before this one in only one of the runs."""
    here, there = _until(sides[side], step[0]), _until(sides[1 - side], step[0])
    everything_here, everything_there = dict(sides[side]), dict(sides[1 - side])
    before_here, before_there = dict(here), dict(there)
    if step[0] not in everything_there:
        # A timer that was never set there: the event that should have set it may have been left out as late.
        for each, version in reversed(here):
            other = everything_there.get(each)
            if other is not None and other.moment.is_late and not version.moment.is_late:
                return Divergence("result", place, side, version, other)
    unseen = [found for found in there if found[0] not in before_here]
    seen = [found for found in here if found[0] not in before_there]
    for found, at in ((unseen, 1 - side), (seen, side)):
        for each in found:
            if _is_only_here(each, everything_here if at != side else everything_there):
                return Divergence("missing", place, at, each[1], None)
    is_in_both = step[0] in everything_here and step[0] in everything_there
    others = [(each, side, step[1], each[1]) for each in unseen if each[0] in everything_here]
    others += [(each, side, each[1], step[1]) for each in seen if is_in_both or each[0] in everything_there]
    if not others:
        return None
    versions = (everything_here, everything_there)
    _, at, first, second = min(others, key=lambda found: _likely(found[0], step[1], versions))
    return Divergence("order", place, at, first, second)


def _likely(
    each: tuple[Id, TraceStep], step: TraceStep, versions: tuple[dict[Id, TraceStep], dict[Id, TraceStep]]
) -> int:
    """How likely the order of two steps made the difference: 0 is most likely.

    Late events come first, as handlers rarely expect them. Then come events at or before the time of the
    other step. It is normal that events of a later time are handled before a timer fires.
    """
    found = [version[each[0]] for version in versions if each[0] in version]
    if any(version.moment.is_late for version in found):
        return 0
    return 1 if each[1].moment.event_time <= step.moment.event_time else 2


def _until(steps: Numbered, step_id: Id) -> Numbered:
    """The steps before a given one; all if it is not among them."""
    return next((steps[:at] for at, (found, _) in enumerate(steps) if found == step_id), steps)


def _places(trace: Trace, ids: Callable[[TraceStep], Iterable[Id]]) -> dict[Id, list[TrackId]]:
    """By id, the places with a step that has it."""
    found: dict[Id, list[TrackId]] = {}
    for place, track in trace.tracks.items():
        for one in chain.from_iterable(map(ids, track)):
            found.setdefault(one, []).append(place)
    return found
