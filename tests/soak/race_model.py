"""What must be in the log after a race, by the lines that its processes wrote down. It knows nothing of how the log works.

Theory. Each writer numbers its commits. A commit also sets the group's position, and the published watermark, to its number. So:

    whole       the records of a commit are those of its label, byte for byte, side by side in each partition
    once        the numbers of a writer's visible commits are 1, 2, ... up to the group's position, each once
    kept        every acknowledged commit is visible
    dropped     no transaction that was aborted or refused is visible, and none that nobody has tried
    fenced      the epochs of the runs that made commits 1, 2, ... of a writer never fall
    one order   there is an order of all commits that all partitions follow
    latest      the compacted topic has the last value of every key, and nothing that was not committed
    prefix      what a follower has read up to an offset is the log up to there: no gap, nothing twice
    followed    a follower that ended by itself has read everything
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tests.soak.checks import read
from tests.soak.race_processes import (
    COMPACTED,
    KEPT,
    NOTES,
    PARTITIONS,
    PLACES,
    WRITERS,
    Digest,
    Label,
    committed,
    outputs,
)

_Record = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes], ...]]


class Prefix(NamedTuple):
    """The records of a partition before an offset, as a process has read them."""

    by: str
    place: TopicPartition
    end: int
    digest: str


class Seen(NamedTuple):
    """A record of the compacted topic that a follower has read."""

    by: str
    label: Label
    offset: int
    key: bytes


@dataclass(slots=True)
class Notes:
    """All lines of all processes."""

    epochs: dict[str, int] = field(default_factory=dict[str, int])
    """By run of a writer."""
    tried: set[Label] = field(default_factory=set[Label])
    acknowledged: set[Label] = field(default_factory=set[Label])
    aborted: set[Label] = field(default_factory=set[Label])
    refused: set[Label] = field(default_factory=set[Label])
    prefixes: list[Prefix] = field(default_factory=list[Prefix])
    seen: list[Seen] = field(default_factory=list[Seen])
    ended: set[str] = field(default_factory=set[str])
    rewritten: int = 0
    """Blocks, by cleaning."""
    unavailable: int = 0
    """Processes for which the append lock did not become free."""

    @classmethod
    def of(cls, folder: Path) -> Notes:
        """The notes in a folder of a race."""
        notes = cls()
        for path in sorted((folder / NOTES).iterdir()):
            notes.add(path.name, path.read_text("ascii").split("\n")[:-1])
        return notes

    def add(self, run: str, lines: Iterable[str]) -> None:
        """Add the lines of one process."""
        labels = {
            "tries": self.tried,
            "acknowledged": self.acknowledged,
            "aborted": self.aborted,
            "refused": self.refused,
        }
        for line in lines:
            what, *words = line.split(" ")
            if what in labels:
                labels[what].add(Label.parsed(words[0]))
            elif what == "read":
                place = TopicPartition(words[0], int(words[1]))
                self.prefixes.append(Prefix(run, place, int(words[2]), words[3]))
            elif what == "seen":
                self.seen.append(Seen(run, Label.parsed(words[0]), int(words[1]), words[2].encode()))
            elif what == "holds":
                self.epochs[run] = int(words[0])
            elif what == "ended":
                self.ended.add(run)
            elif what == "cleaned":
                self.rewritten += int(words[0])
            elif what == "unavailable":
                self.unavailable += 1
            else:
                raise AssertionError(f"a line of {run}: {line}")


@dataclass(frozen=True, slots=True)
class Found:
    """What is in the log when all processes have ended."""

    records: dict[TopicPartition, list[InputRecord]]
    positions: dict[str, int]
    """By writer, the position that was committed for its group."""
    watermarks: dict[str, int | None]

    @classmethod
    def of(cls, log: EmbeddedLog) -> Found:
        """Verify a log and read it."""
        log.verify()
        records = {
            TopicPartition(topic, number): some
            for topic in (*KEPT, COMPACTED)
            for number, some in enumerate(read(log, topic))
        }
        published = log.publications()
        return cls(
            records,
            {name: committed(log, name) for name in WRITERS},
            {name: published.get((KEPT[0], name)) for name in WRITERS},
        )


def violations(seed: int, notes: Notes, found: Found) -> list[str]:
    """Everything that must not be, in words; empty if all is as it must be."""
    commits = {place: _commits(found.records[place]) for place in PLACES}
    said = [*_of_order(found, commits)]
    parts: dict[Label, dict[TopicPartition, list[_Record]]] = defaultdict(dict)
    for place, some in commits.items():
        for one in some:
            parts[one.label].setdefault(place, []).extend(one.records)
    latest: dict[bytes, dict[Label, _Record]] = defaultdict(dict)
    for label, visible in parts.items():
        wanted = _by_place(outputs(seed, label))
        for place in [place for place in wanted if place.topic == COMPACTED]:
            for record in wanted.pop(place):
                latest[record[0] or b""][label] = record
        if visible != wanted:
            places = [
                place for place in sorted({*visible, *wanted}) if visible.get(place) != wanted.get(place)
            ]
            said.append(f"commit {label} is not whole in {_names(places)}")
    said += _of_commits(notes, found, parts.keys())
    said += _of_latest(notes, found, latest)
    said += _of_prefixes(notes, found)
    return said


class _Part(NamedTuple):
    """The records of a commit that stand side by side in a partition, and the offset after them."""

    label: Label
    end: int
    records: list[_Record]


def _commits(records: Sequence[InputRecord]) -> list[_Part]:
    found: list[_Part] = []
    end = 0
    for label, some in groupby(records, Label.of):
        part = [_bare(one) for one in some]
        end += len(part)
        found.append(_Part(label, end, part))
    return found


def _of_order(found: Found, commits: Mapping[TopicPartition, Sequence[_Part]]) -> Iterator[str]:
    order: TopologicalSorter[Label] = TopologicalSorter()
    for place, parts in commits.items():
        offsets = [one.offset for one in found.records[place]]
        if offsets != list(range(len(offsets))):
            yield f"the offsets of {_names([place])} have a gap, or one twice"
        times = Counter(one.label for one in parts)
        yield from (
            f"commit {label} is at {count} places of {_names([place])}"
            for label, count in times.items()
            if count > 1
        )
        for before, after in pairwise(parts):
            if before.label != after.label:
                order.add(after.label, before.label)
    try:
        order.prepare()
    except CycleError as error:
        yield f"partitions have commits in different orders: {', '.join(map(str, error.args[1][:3]))}"


def _of_commits(notes: Notes, found: Found, visible: Iterable[Label]) -> Iterator[str]:
    by_writer: dict[str, list[Label]] = defaultdict(list)
    for label in visible:
        by_writer[label.writer].append(label)
    for name in WRITERS:
        labels = sorted(by_writer.pop(name, []), key=lambda one: one.number)
        times = Counter(one.number for one in labels)
        position = found.positions[name]
        if twice := [number for number, count in times.items() if count > 1]:
            yield f"commits of {name!r} twice: {twice[:5]}"
        if times.keys() != set(range(1, position + 1)):
            missing = sorted(set(range(1, position + 1)) - times.keys())
            more = [number for number in times if number > position]
            yield f"the position of {name!r} is {position}; commits missing: {missing[:5]}, past it: {more[:5]}"
        if found.watermarks[name] != (position or None):
            yield f"the watermark of {name!r} is {found.watermarks[name]}, its position {position}"
        epochs = [notes.epochs.get(one.run, 0) for one in labels]
        for (before, after), (one, other) in zip(pairwise(epochs), pairwise(labels), strict=True):
            if after < before:
                yield f"commit {other} of epoch {after} is behind {one} of epoch {before}"
    yield from (f"commits of an unknown writer: {name}" for name in by_writer)
    all_visible = set(visible)
    for kind, wrong in (
        ("an acknowledged commit is lost", notes.acknowledged - all_visible),
        ("an aborted transaction is visible", notes.aborted & all_visible),
        ("a refused transaction is visible", notes.refused & all_visible),
        ("a commit that nobody has tried", all_visible - notes.tried),
    ):
        yield from (f"{kind}: {label}" for label in sorted(wrong))


def _of_latest(notes: Notes, found: Found, wanted: Mapping[bytes, Mapping[Label, _Record]]) -> Iterator[str]:
    """The compacted topic. A key belongs to one writer, so the highest number is the last one."""
    last: dict[bytes, _Record] = {}
    for number in range(PARTITIONS):
        records = found.records[TopicPartition(COMPACTED, number)]
        offsets = [one.offset for one in records]
        if offsets != sorted(set(offsets)):
            yield f"the offsets of {COMPACTED}/{number} do not rise"
        for one in records:
            key = one.key or b""
            last[key] = _bare(one)
            if wanted.get(key, {}).get(Label.of(one)) != last[key]:
                yield f"{COMPACTED}/{number} at {one.offset}: a record that was not committed"
    for key, some in wanted.items():
        record = some[max(some, key=lambda label: label.number)]
        cleaned = record[1] is None and key not in last
        if last.get(key) != record and not cleaned:
            yield f"the last value of {key.decode()} in {COMPACTED} is not {record[1]!r}"
    before: dict[tuple[str, int], int] = {}
    for seen in notes.seen:
        if seen.label not in wanted.get(seen.key, {}):
            yield f"{seen.by} has seen {seen.label} in {COMPACTED}, which was not committed"
        place = seen.by, partition_of(seen.key, PARTITIONS)
        if seen.offset <= before.get(place, -1):
            yield f"{seen.by} has seen offset {seen.offset} of {COMPACTED} after {before[place]}"
        before[place] = seen.offset


def _of_prefixes(notes: Notes, found: Found) -> Iterator[str]:
    ends: dict[TopicPartition, set[int]] = defaultdict(set)
    for one in notes.prefixes:
        ends[one.place].add(one.end)
    digests = {
        (place, end): text for place in PLACES for end, text in _digests(found.records[place], ends[place])
    }
    wrong: set[tuple[str, TopicPartition]] = set()
    reached: dict[tuple[str, TopicPartition], int] = {}
    for one in notes.prefixes:
        at, name = (one.by, one.place), _names([one.place])
        if digests.get((one.place, one.end)) != one.digest and at not in wrong:
            wrong.add(at)
            yield f"what {one.by} has read of {name} before {one.end} is not what the log has"
        if one.end < reached.get(at, 0):
            yield f"{one.by} went back in {name}, from {reached[at]} to {one.end}"
        reached[at] = one.end
    for run in sorted(notes.ended):
        for place in PLACES:
            if reached.get((run, place), 0) != len(found.records[place]):
                yield f"{run} has ended at {reached.get((run, place), 0)} of {_names([place])}, before its end"


def _digests(records: Sequence[InputRecord], ends: set[int]) -> Iterator[tuple[int, str]]:
    digest = Digest()
    if 0 in ends:
        yield 0, digest.text()
    for one in records:
        digest.add(one)
        if digest.end in ends:
            yield digest.end, digest.text()


def _by_place(records: Iterable[Output]) -> dict[TopicPartition, list[_Record]]:
    places: dict[TopicPartition, list[_Record]] = {}
    for one in records:
        place = TopicPartition(one.topic, partition_of(one.key or b"", PARTITIONS))
        places.setdefault(place, []).append((one.key, one.value, one.timestamp_ms, one.headers))
    return places


def _names(places: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{number}" for topic, number in places)


def _bare(one: InputRecord) -> _Record:
    return one.key, one.value, one.timestamp_ms, one.headers
