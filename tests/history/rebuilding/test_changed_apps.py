"""Random apps whose service has recorded what one version sends, rebuilt with another that sends something else: however it is done, in
parts or whole, it comes to what plain Python says of the other version.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec
import pytest

from tailrace.core.engine.replay import Limits
from tailrace.core.errors import OptionError, ReplayDivergedError
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.rebuilding import driver
from tests.cast.webs import Result, reach, records
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TaskState, done, rebuilt
from tests.history.rebuilding.planted import (
    LAST_MS,
    app_of,
    drawn,
    fed,
    has_stages,
    read_fields,
    sent,
    states,
    topics_of,
)
from tests.proof.seeds import told

Rows: TypeAlias = list[dict[bytes, bytes]]
Made: TypeAlias = tuple[list[TaskState], Counter[Result]]
"""The state, and the results if there are outputs."""
DEEP = 333
"""The seed of an app of three stages and three partitions, with messages, of which the other version sends others."""


class Case:
    """The log of a seed, and rebuilds with the other version."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder, self.app = Random(seed), folder, app_of(seed, "b")
        self.web, self.changed, self.events = drawn(seed)
        self.folder.mkdir()
        fed(folder, seed)
        lived.live_on(folder, app_of(seed, "a"), ends=False)
        before, now = (reach(web, self.events, LAST_MS) for web in (self.web, self.changed))
        self.is_same = sent(self.web, before) == sent(self.web, now) and before == now
        self.made = 0

    def rebuild(self, processes: int = 1, **options: Any) -> Made:
        """Rebuild, with outputs unless it is of some keys."""
        self.made += 1
        place = self.folder / f"outputs-{self.made}"
        if not options.get("keys"):
            options["outputs"] = f"parquet:{place}"
        _, snapshot = done(self.folder, self.app, processes, name=f"n{self.made}", **options)
        some = lived.outputs(place, snapshot, "results") if "outputs" in options else []
        return rebuilt(snapshot), Counter(msgspec.json.decode(one.value or b"", type=Result) for one in some)

    def check(self, made: Made, until: int) -> None:
        """Compare with plain Python, up to a time."""
        events = self.events
        if until != LAST_MS:
            events = {name: [one for one in some if one.at <= until] for name, some in events.items()}
        wanted = reach(self.changed, events, until)
        state, results = made
        assert up_to(until, results) == up_to(until, wanted.results)
        assert read_fields(state) == states(self.changed, wanted, until)

    def check_keys(self, whole: list[TaskState], **options: Any) -> None:
        """Each key, in one of two parts, has the rows that it has in the whole."""
        keys = sorted({key for _, key in read_fields(whole)})
        self.random.shuffle(keys)
        half = self.random.randint(0, len(keys))
        found: Rows = [{} for _ in whole]
        for part in filter(None, (keys[:half], keys[half:])):
            for rows, one in zip(found, self.rebuild(keys=tuple(part), **options)[0], strict=True):
                assert not rows.keys() & dict(one.rows).keys()
                rows.update(one.rows)
        assert found == rows_of(whole)


def up_to(until: int, results: Counter[Result]) -> dict[Result, int]:
    return {one: count for one, count in results.items() if one.at <= until}


def rows_of(made: list[TaskState]) -> Rows:
    return [dict(one.rows) for one in made]


def check_stages(case: Case) -> None:
    """The whole, some keys, and as of a time."""
    made = case.rebuild(order="stages")
    case.check(made, LAST_MS)
    case.check_keys(made[0], order="stages")
    as_of_ms = case.random.randint(0, 400_000)
    cut = case.rebuild(order="stages", as_of_ms=as_of_ms)
    case.check(cut, as_of_ms)
    case.check_keys(cut[0], order="stages", as_of_ms=as_of_ms)


def check_offsets(case: Case) -> None:
    """Stopped at offsets, it is what it is of a log that ends there."""
    log: dict[tuple[str, int], list[Output]] = {}
    for one in records(case.web, case.events):
        log.setdefault((one.topic, partition_of(one.key or b"", case.web.partitions)), []).append(one)
    until: dict[str, dict[int, int]] = {}
    some: list[Output] = []
    for (name, number), each in log.items():
        until.setdefault(name, {})[number] = case.random.randint(1, len(each))
        some += each[: until[name][number]]
    stopped = case.rebuild(order="stages", until=Limits(until))
    case.check_keys(stopped[0], order="stages", until=Limits(until))
    shorter = case.folder / "shorter"
    lived.append(shorter, some, dict.fromkeys(topics_of(case.web), case.web.partitions))
    state, results = case.rebuild(order="stages", log=str(shorter / "log"))
    assert (read_fields(stopped[0]), stopped[1]) == (read_fields(state), results)


def check_tape(case: Case) -> None:
    """Along the tape, other results than the recorded ones are refused; else it comes to the same."""
    if not case.is_same:
        with pytest.raises(ReplayDivergedError):
            case.rebuild(order="tape")
        return
    made = case.rebuild(order="tape")
    case.check(made, LAST_MS)
    case.check_keys(made[0], order="tape")


@pytest.mark.one_seed_in(25)  # one takes 3 s
def test_changed_code_comes_to_the_same_however_it_is_rebuilt(
    seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        driver, "code_of", lambda *_: dict[str, str]()
    )  # it takes long, and the files stay the same
    for seed in seeds:
        trace: list[str] = []
        with told(seed, trace):
            case = Case(seed, tmp_path / str(seed))
            trace += [*map(str, case.web.nodes), str(case.changed.plant)]
            if has_stages(seed):
                check_stages(case)
                check_offsets(case)
            else:
                with pytest.raises(OptionError, match="what they write themselves"):
                    case.rebuild(order="stages")
            check_tape(case)
            shutil.rmtree(case.folder)


def test_two_processes_come_to_the_same_as_one(tmp_path: Path) -> None:
    case = Case(DEEP, tmp_path / "deep")
    one, two = (case.rebuild(processes, order="stages") for processes in (1, 2))
    assert one == two
    case.check(two, LAST_MS)
