"""A short race of real processes, and the model shown able to fail: it gets logs and notes with one mistake each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tests.conftest import FIRST_SEED
from tests.soak import race_processes
from tests.soak.checks import read
from tests.soak.race import Race
from tests.soak.race_model import Found, Notes, violations
from tests.soak.race_processes import COMPACTED, KEPT, LOG, PLACES, POSITION, Digest, Label, outputs

SEED = 7
ONE = [Label("one.1", number, number) for number in range(1, 6)]
TWO = [Label("two.2", number, number) for number in range(1, 6)]
LATER = Label("one.3", 1, 5)
"""The fifth commit of ``one``, by another run."""


@pytest.mark.long
def test_whatever_is_killed_or_stopped_no_commit_is_lost_doubled_or_torn(tmp_path: Path) -> None:
    report = Race(tmp_path, FIRST_SEED, seconds=3).run()
    assert report.violations == []
    assert report.figures["acknowledged"] > 0
    assert report.figures["followers at the end"] > 0


@dataclass(slots=True)
class Trace:
    """What is in a log, commit by commit, and what processes have noted."""

    commits: list[tuple[Label, list[Output]]] = field(
        default_factory=lambda: [
            (label, outputs(SEED, label)) for pair in zip(ONE, TWO, strict=True) for label in pair
        ]
    )
    notes: dict[str, list[str]] = field(
        default_factory=lambda: {
            "one.1": ["holds 1", *_acknowledged(ONE)],
            "two.2": ["holds 1", *_acknowledged(TWO)],
        }
    )

    def violations(self, folder: Path) -> list[str]:
        race_processes.create(folder)
        log = EmbeddedLog(folder / LOG)
        for label, records in self.commits:
            writer = log.writer(label.writer)
            writer.append(records)
            writer.commit({POSITION: label.number}, label.writer, {KEPT[0]: label.number})
        self.notes.setdefault("follower.4", [*_reads(log), "ended"])
        notes = Notes()
        for run, lines in self.notes.items():
            notes.add(run, lines)
        found = Found.of(log)
        log.close()
        return violations(SEED, notes, found)


def _acknowledged(labels: list[Label]) -> list[str]:
    return [f"{what} {label}" for label in labels for what in ("tries", "acknowledged")]


def _reads(log: EmbeddedLog) -> list[str]:
    lines: list[str] = []
    for topic, number in PLACES:
        digest = Digest()
        for one in read(log, topic)[number]:
            digest.add(one)
        lines.append(f"read {topic} {number} {digest.end} {digest.text()}")
    return lines


def _remove(trace: Trace) -> None:
    trace.commits.pop(4)


def _remove_the_last(trace: Trace) -> None:
    del trace.commits[-2]


def _double(trace: Trace) -> None:
    trace.commits.insert(5, trace.commits[4])


def _double_by_another_run(trace: Trace) -> None:
    trace.notes[LATER.run] = ["holds 2", *_acknowledged([LATER])]
    trace.commits.append((LATER, outputs(SEED, LATER)))


def _tear(trace: Trace) -> None:
    trace.commits[4][1].pop(0)


def _change(trace: Trace) -> None:
    records = trace.commits[4][1]
    records[0] = records[0]._replace(timestamp_ms=records[0].timestamp_ms + 1)


def _cross(trace: Trace) -> None:
    """A commit whose partitions are filled before and behind another one."""
    (label, records), (_, others) = trace.commits[4:6]
    early = {one.topic for one in others} & {KEPT[0]}
    assert early
    trace.commits[4:5] = [(label, [one for one in records if one.topic in early])]
    trace.commits.insert(6, (label, [one for one in records if one.topic not in early]))


def _drop_the_latest(trace: Trace) -> None:
    label, records = trace.commits[-1]
    trace.commits[-1] = (label, [one for one in records if one.topic != COMPACTED])


def _wake_a_zombie(trace: Trace) -> None:
    """The fourth commit is of a later run, the fifth of the first one again."""
    later = Label("one.3", 1, 4)
    trace.notes["one.3"] = ["holds 2", *_acknowledged([later])]
    trace.commits[6] = (later, outputs(SEED, later))
    trace.notes["one.1"] = ["holds 1", *_acknowledged([*ONE[:3], ONE[4]])]


def _note(run: str, *lines: str) -> Callable[[Trace], None]:
    def note(trace: Trace) -> None:
        trace.notes.setdefault(run, []).extend(lines)

    return note


def _try_nothing(trace: Trace) -> None:
    del trace.notes["one.1"][-2:]


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (_remove, "an acknowledged commit is lost: one.1/3/3"),
        (_remove_the_last, "an acknowledged commit is lost: one.1/5/5"),
        (_double, "commit one.1/3/3 is not whole"),
        (_double_by_another_run, r"commits of 'one' twice: \[5\]"),
        (_tear, "commit one.1/3/3 is not whole"),
        (_change, "commit one.1/3/3 is not whole"),
        (_cross, "partitions have commits in different orders"),
        (_drop_the_latest, "the last value of .* is not"),
        (_wake_a_zombie, "commit one.1/5/5 of epoch 1 is behind one.3/1/4 of epoch 2"),
        (_note("one.1", f"aborted {ONE[2]}"), "an aborted transaction is visible: one.1/3/3"),
        (_note("one.1", f"refused {ONE[2]}"), "a refused transaction is visible: one.1/3/3"),
        (_try_nothing, "a commit that nobody has tried: one.1/5/5"),
        (_note("follower.4", "read first 0 1 0000"), "what follower.4 has read of first/0 before 1 is not"),
        (_note("follower.4", "ended"), "follower.4 has ended at 0 of first/0"),
        (
            _note("follower.4", f"seen {LATER} 3 one-1"),
            "has seen one.3/1/5 in latest, which was not committed",
        ),
    ],
)
def test_the_model_finds(tmp_path: Path, mistake, said: str) -> None:
    trace = Trace()
    mistake(trace)
    assert re.search(said, "\n".join(trace.violations(tmp_path)))


def test_the_model_finds_nothing_where_all_is_as_it_must_be(tmp_path: Path) -> None:
    assert Trace().violations(tmp_path) == []
