"""``tailrace ab`` over random apps, of which B has a change in one operator: it is found at its event, for each key, and nowhere else.

What differs is worked out by plain Python over the events of both versions.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding import driver
from tailrace.lab import side
from tailrace.log.embedded import EmbeddedLog
from tests.cast.webs import Kept, Node, Reached, Web, reach
from tests.history.rebuilding import lived
from tests.history.rebuilding.planted import LAST_MS, app_of, drawn, fed, is_known
from tests.lab.in_process import comparison
from tests.proof.seeds import told

Row: TypeAlias = Mapping[str, Any]
Group: TypeAlias = tuple[str, str, int]
"""Outputs by topic, key and event time."""


def parted(web: Web, node: Node, one: Kept | None, other: Kept | None) -> set[int]:
    """The event times of which one is the first at which a key differs; only that one, if their order is known."""
    a, b = ([(each.at, each.amount) for each in kept.counted] if kept else [] for kept in (one, other))
    apart = {at for at, _ in (Counter(a) - Counter(b)) + (Counter(b) - Counter(a))}
    if apart and web.order_of(node) == "event-time":
        return {min(apart)}
    return {next(at for at, _ in a if at in apart)} if apart and is_known(web, node) else apart


def outputs(web: Web, reached: Reached) -> dict[Group, Counter[Any]]:
    """All outputs, without messages."""
    found: dict[Group, Counter[Any]] = {}
    for name in {name for node in web.nodes for name in node.targets}:
        for one in reached.given.get(name, ()):
            found.setdefault((name, one.key, one.at), Counter())[one] += 1
    for result, count in reached.results.items():
        found.setdefault(("results", result.key, result.at), Counter())[result] += count
    return found


def time_of(row: Row, column: str) -> int | None:
    return None if row[column] is None else round(row[column].timestamp() * 1000)


class Expected:
    """The answer of plain Python for two versions."""

    def __init__(self, a: Web, b: Web, events: dict[str, list[Any]]) -> None:
        self.web = a
        one, other = (reach(web, events, LAST_MS) for web in (a, b))
        self.keys: dict[tuple[str, str], set[int]] = {}
        """By actor and key that differ, as ``parted``."""
        for node in a.nodes:
            kept, then = one.kept[node.name], other.kept[node.name]
            for key in kept.keys() | then.keys() if node.width else ():
                if times := parted(a, node, kept.get(key), then.get(key)):
                    self.keys[node.name, key] = times
        before, after = outputs(a, one), outputs(b, other)
        self.groups = {
            group: after.get(group, Counter()).total() - before.get(group, Counter()).total()
            for group in before.keys() | after.keys()
            if before.get(group) != after.get(group)
        }
        """The outputs that differ, and how many more there are in B."""

    def check_keys(self, rows: Sequence[Row], offsets: Mapping[tuple[str, int | None], int]) -> None:
        """Check ``differences``."""
        assert {(row["actor"], row["key"]) for row in rows} == self.keys.keys()
        for row in rows:
            at = time_of(row, "first_time")
            assert at in self.keys[row["actor"], row["key"]], row
            if (place := offsets.get((row["first_topic"], at))) is not None:
                assert (row["first_offset"], row["first_timer"]) == (place, None)

    def check_outputs(self, rows: Sequence[Row]) -> None:
        """Check ``outputs_differences``."""
        more = dict.fromkeys(self.groups, 0)
        kinds = {"only-b": 1, "only-a": -1, "changed": 0}
        for row in rows:
            more[row["topic"], row["key"], time_of(row, "time") or 0] += kinds[row["kind"]]
            own = {at for topic, key, at in self.groups if (topic, key) == (row["topic"], row["key"])}
            before = [times for (_, key), times in self.keys.items() if key == row["key"]]
            at = time_of(row, "first_time")
            # Other outputs than the results go to other keys than those that they come from, and follow from these alone.
            assert at in own.union(*before) or (at is None and row["topic"] != "results" and not before), row
        assert more == self.groups


def times_in(folder: Path) -> dict[tuple[str, int, int], int]:
    """The times of all records of a log, by topic, partition and offset."""
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return {
            (name, number, one.offset): one.timestamp_ms
            for name in log.topics()
            for number in range(log.partitions(name))
            for one in scan(log, name, number)
        }


@pytest.mark.one_seed_in(50)  # one takes a second
@pytest.mark.parametrize("lives", [False, True])
def test_a_planted_change_is_found_at_its_event_for_each_key_and_nowhere_else(
    lives: bool, seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (driver, side):  # the files of the code are the same for both, and take long to read
        monkeypatch.setattr(each, "code_of", lambda *_: dict[str, str]())
    kinds = Counter[str]()
    for seed in seeds:
        trace: list[str] = []
        folder, (web, changed, events) = tmp_path / str(seed), drawn(seed)
        trace += [*map(str, web.nodes), str(changed.plant)]
        with told(seed, trace):
            fed(folder, seed)
            if lives:
                lived.live_on(folder, app_of(seed, "a"), ends=False)
            report, keys, others = comparison(monkeypatch, folder, app_of(seed, "a"), app_of(seed, "b"))
            wanted = Expected(web, changed, events)
            assert (report.noise, report.order) == ([], "stages"), report.why
            times = times_in(folder)
            # An event is known by its time, which no other has.
            sources = {*web.sources} - web.repartitioned
            wanted.check_keys(
                keys, {(name, at): offset for (name, _, offset), at in times.items() if name in sources}
            )
            wanted.check_outputs(others)
            for row in (*keys, *others):  # also of messages, and of topics of the app
                place = row["first_topic"], row["first_partition"], row["first_offset"]
                assert row["first_offset"] is None or times[place] == time_of(row, "first_time"), row
            kinds["outputs"] += len(others)
        shutil.rmtree(folder)
    assert kinds["outputs"]
