"""What the service must have come to, from the events and the versions of the code alone; the framework is not asked.

The rules that it knows, beside those of the apps (``apps``):

- The watermark of ``Shop`` in a partition is the least over its inputs of the highest time seen, less the disorder, less one.
  Inputs that have ended or are idle do not count; when none does, it is the highest of theirs. In a rebuild under newer code,
  an input does not count in the runs before it was added.
- ``Region`` goes by the least of those watermarks over all partitions, or by the highest if all are idle.
- A timer fires when the watermark has come to its time. At the end of input (``--end-of-input``) each actor rises to its last
  timer; that it has ended leaves nothing else behind. The end of a run (``--until-end``) leaves all as it is.
- A value with a time to live is gone when the watermark has come to the time of its last write plus the time to live that it
  was written under, unless that declaration has ended since.
- A row has all fields that were declared when it was written last. One that has not reads the default.
- A failed event leaves nothing behind but its letter and its mark on the watermark.

Within a run the order of events in time may not matter, so each run is worked out as a whole, in whatever order is simplest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from tailrace.core.values.partitioner import partition_of
from tests.months.apps import (
    DISORDER_MS,
    UNLUCKY,
    Closed,
    Note,
    Part,
    Sale,
    Total,
    Version,
    end_of,
    region_of,
)

Key: TypeAlias = tuple[str, str]
"""An actor and a key."""
State: TypeAlias = dict[Key, dict[str, Any]]
"""The declared fields by their stored names, and ``open``. Without instances that have nothing but defaults."""


class Given(NamedTuple):
    """An event of an input. One that is late was chosen such that every order finds it late, and its window closed."""

    event: Sale | Note
    late: bool = False
    redriven: bool = False


class Run(NamedTuple):
    """What one version of the code has read, from one moment of rest to the next."""

    version: Version
    events: tuple[Given, ...]
    ended: bool
    """Whether its inputs have ended: ``--end-of-input``."""


class Dropped(NamedTuple):
    """``--drop-state Shop.extra``."""


class Replaced(NamedTuple):
    """The state is that of a rebuild: all runs before it, under one version."""

    under: Under
    at: int
    """How much had happened when it was made."""


class Under(NamedTuple):
    """How a rebuild runs history again: under this version; along the tape what had failed is left out."""

    version: Version
    canonical: bool = False
    """In canonical order: then what had failed is handled in its place."""


Happened: TypeAlias = Run | Dropped | Replaced


class Undecided(Exception):
    """The results depend on the order, under a version that the events were not made for."""


@dataclass(slots=True)
class World:
    """All that there is after some runs."""

    partitions: int
    plain: dict[Key, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    open: dict[Key, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    outputs: Counter[Part | Total | Closed] = field(default_factory=Counter[Part | Total | Closed])
    letters: int = 0
    """Dead letters, ever."""
    failed: list[Sale] = field(default_factory=list[Sale])
    """Those that were not redriven."""
    expires: dict[Key, int] = field(default_factory=dict[Key, int])
    """When ``last`` is gone, by the time to live that it was written under."""
    seen: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """The highest time by input and partition."""
    watermarks: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """By actor and partition."""

    def partition(self, key: str) -> int:
        """The task of a key."""
        return partition_of(key.encode(), self.partitions)

    def is_past(self, shop: str, at: int) -> bool:
        """Whether a sale at this time is late whatever the order, and its window closed."""
        return end_of(at) - 1 <= self.watermarks.get(("Shop", self.partition(shop)), 0)

    @property
    def latest(self) -> int:
        """Any event after this is in time, in every partition."""
        return max((*self.seen.values(), *self.watermarks.values()), default=0)

    def state(self, version: Version) -> State:
        """What a version of the code sees."""
        declared = fields_of(version)
        found: State = {}
        for key in {*self.plain, *self.open}:
            stored = self.plain.get(key, {})
            fields: dict[str, Any] = {
                name: stored.get(name, default) for name, default in declared[key[0]].items()
            }
            if "open" in declared[key[0]]:
                fields["open"] = dict(self.open[key])
            if fields != declared[key[0]]:
                found[key] = fields
        return found


def fields_of(version: Version) -> dict[str, dict[str, Any]]:
    """The stored names of the fields that a version declares, by actor, with their defaults."""
    shop: dict[str, Any] = {"count": 0, "total": 0, "last": 0, "open": {}}
    if version.extra:
        shop["extra"] = 0
    if version.notes:
        shop["weight"] = 0
    found = {"Shop": shop, "Region": {"count": 0, "total": 0, "open": {}}}
    return {**found, "Board": {"windows": 0, "amount": 0}} if version.sends else found


def world_after(history: Sequence[Happened], partitions: int, under: Under | None = None) -> World:
    """Work it out: each run under its own version, or all of them under one.

    Raises:
        Undecided: The oracle cannot say.
    """
    if under is not None and under.canonical:
        return _canonical(history, partitions, under.version)
    if under is not None and any(
        isinstance(one, Run) and one.ended and one.version.ttl_ms != under.version.ttl_ms for one in history
    ):
        # At the end of a run event time rose as far as the timers of the code of then: that is on the tape.
        raise Undecided
    world = World(partitions)
    for one in history:
        if isinstance(one, Run):
            _take(world, one, under or Under(one.version))
        elif isinstance(one, Dropped):
            if under is None:
                _drop(world)
        elif under is None:
            _replace(world, world_after(history[: one.at], partitions, one.under), one.under)
    return world


def _canonical(history: Sequence[Happened], partitions: int, version: Version) -> World:
    """What a rebuild in canonical order comes to: all events at once, each where it came first.

    Only the last run ends, if it did.
    """
    runs = [one for one in history if isinstance(one, Run)]
    events = [one for run in runs for one in run.events]
    if version.notes and any(one.late or one.redriven for one in events):
        raise Undecided
    first = {event: at for at, (event, *_) in reversed([*enumerate(events)])}
    world = World(partitions)
    for at, (event, *_) in enumerate(events):
        if isinstance(event, Note):
            continue
        task = world.partition(event.shop)
        late = event.at <= world.watermarks.get(("Shop", task), 0)
        _see(world, "sales", event)
        if first[event] == at and (event.amount != UNLUCKY or not version.faulty):
            _sell(world, version, event, late=late)
        if not version.notes:
            _rise(
                world,
                Run(version, (), ended=False),
                "Shop",
                task,
                world.seen["sales", task] - DISORDER_MS - 1,
            )
    for event, *_ in events:
        if isinstance(event, Note) and version.notes:
            _touch(world, version, ("Shop", event.shop))
            _add(world, ("Shop", event.shop), weight=event.weight)
            _see(world, "notes", event)
    ended = bool(runs) and runs[-1].ended
    if version.idle and not ended:  # by the timestamps of the records
        raise Undecided
    _close(world, Run(version, (), ended), idle=False, notes=version.notes)
    return world


def _drop(world: World) -> None:
    for fields in world.plain.values():
        fields.pop("extra", None)


def _replace(world: World, other: World, under: Under) -> None:
    """What was emitted stays, and so does what the inputs held."""
    world.plain, world.open, world.watermarks = other.plain, other.open, other.watermarks
    world.expires = other.expires
    if under.canonical and not under.version.faulty:
        world.failed = []


def _take(world: World, run: Run, under: Under) -> None:
    version, was = under.version, run.version
    late: list[Sale] = []
    for event, is_late, redriven in run.events:
        if isinstance(event, Note):
            if version.notes and was.notes:
                _touch(world, version, ("Shop", event.shop))
                _add(world, ("Shop", event.shop), weight=event.weight)
                _see(world, "notes", event)
            continue
        _see(world, "sales", event)
        if redriven and event in world.failed:
            world.failed.remove(event)
        if is_late and not world.is_past(event.shop, event.at):
            raise Undecided
        if event.amount == UNLUCKY and was.faulty:
            world.letters += 1
            world.failed.append(event)
        elif is_late or redriven:
            late.append(event)
        else:
            _sell(world, version, event)
    for event in late:
        _sell(world, version, event, late=True)
    _close(world, run._replace(version=version), idle=was.idle, notes=version.notes and was.notes)


def _see(world: World, topic: str, event: Sale | Note) -> None:
    place = (topic, world.partition(event.shop))
    world.seen[place] = max(world.seen.get(place, 0), event.at)


def _touch(world: World, version: Version, key: Key) -> None:
    """The row of a shop is written: with all fields that are declared."""
    if key[0] == "Shop" and version.extra:
        world.plain[key].setdefault("extra", 0)


def _add(world: World, key: Key, **amounts: int) -> None:
    fields = world.plain[key]
    for name, amount in amounts.items():
        fields[name] = fields.get(name, 0) + amount


def _sell(world: World, version: Version, sale: Sale, *, late: bool = False) -> None:
    amount, key, end = sale.amount * version.factor, ("Shop", sale.shop), end_of(sale.at)
    _touch(world, version, key)
    _add(world, key, count=1, total=amount, **({"extra": amount} if version.extra else {}))
    if late:
        if world.is_past(sale.shop, sale.at):  # what it opens again closes with it
            _window(world, version, key, end, amount)
        else:
            world.open[key][end] += amount
        return
    world.open[key][end] += amount
    if sale.at > world.plain[key].get("last", 0):
        world.plain[key]["last"] = sale.at
        world.expires[key] = sale.at + version.ttl_ms
    part = Part(region_of(sale.shop), sale.at, amount)
    world.outputs[part] += 1
    region = ("Region", part.region)
    _add(world, region, count=1, total=amount)
    world.open[region][end_of(part.at)] += amount


def _window(world: World, version: Version, key: Key, end: int, amount: int) -> None:
    """A window closes."""
    _touch(world, version, key)
    world.outputs[Total(key[1], end, amount)] += 1
    if key[0] == "Shop" and version.sends:
        world.outputs[Closed(end, amount)] += 1
        _add(world, ("Board", region_of(key[1])), windows=1, amount=amount)


def _close(world: World, run: Run, *, idle: bool, notes: bool) -> None:
    """A run comes to rest. ``idle``: its inputs fell idle then, by the code of then. ``notes``: it had that input then."""
    inputs = ("sales", "notes") if notes else ("sales",)
    tasks = range(world.partitions)
    for task in tasks:
        seen = [world.seen.get((one, task)) for one in inputs]
        known = [one for one in seen if one is not None]
        # An input that has ended or is idle holds nobody back; one that has begun does, and so does one that has not.
        free = run.ended or idle
        goes_by = max(known, default=None) if free else min(known) if known == seen else None
        _rise(world, run, "Shop", task, None if goes_by is None else goes_by - DISORDER_MS - 1)
    stated = [world.watermarks.get(("Shop", task)) for task in tasks]
    known = [one for one in stated if one is not None]
    if idle:
        region = max(known, default=None)
    else:
        region = min(known) if len(known) == len(stated) else None
    for task in tasks:
        _rise(world, run, "Region", task, region)


def _rise(world: World, run: Run, actor: str, task: int, to: int | None) -> None:
    """An actor's watermark goes up in a task; what is due closes, or is gone."""
    keys = [key for key in world.open if key[0] == actor and world.partition(key[1]) == task]
    ends = [end - 1 for key in keys for end in world.open[key]] if run.ended else []
    found = max(
        (*ends, *(one for one in (to, world.watermarks.get((actor, task))) if one is not None)), default=None
    )
    if found is None:
        return
    world.watermarks[actor, task] = found
    for key in keys:
        for end in [one for one in world.open[key] if one - 1 <= found]:
            _window(world, run.version, key, end, world.open[key].pop(end))
        if world.expires.get(key, found + 1) <= found:
            _touch(world, run.version, key)
            world.plain[key].pop("last", None)
            del world.expires[key]
