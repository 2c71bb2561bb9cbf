"""The app of a seed, made anew in whatever process asks for it by name: ``tests.spark.proof.seeded:seed_417``.

It is an app of one actor whose events are programs (``tests.proof.apps``), or, of two seeds in ten, one of several operators
that has an oracle (``tests.cast.webs``).

A process that has ``ELSEWHERE`` in its environment goes about the units of a rebuild in its own way: windows and
commits of other sizes, by the unit. There ``doomed_417`` is the same app, whose units die while they run: attempt by
attempt, at an operation drawn from seed and unit, until they are let live.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import tailrace as tr
from tailrace.core.engine import intake
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading import driving, stretches
from tailrace.history.rebuilding import canonical_history, canonical_unit, output_files, request, units
from tailrace.history.rebuilding.job import Unit
from tailrace.state import RocksStore
from tests.cast.webs import Result, Web, oracle, pieces, records, web_of
from tests.proof.apps import Variant, build
from tests.proof.operations import Interpreter
from tests.proof.seeds import Feed, Records, variant_of

MODULE = "tests.spark.proof.seeded"
ELSEWHERE = "TAILRACE_PROOF_ELSEWHERE"
"""A folder for the marks that units leave when they die."""
MET = ".met"
"""The end of the mark of a death that has come."""
DEATHS = 2
"""Of each unit, at most: Spark gives one up after four."""
COMMIT_EVERY, LOOK_EVERY = 20, 3
"""In canonical order: where commits fall and watermarks are looked for is a part of the result, so it is the same everywhere."""
_OPERATIONS = 40
_FILES = frozenset(("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"))


class Given(NamedTuple):
    """An app, and the records of its inputs in the order that they come, each with its partition."""

    app: tr.App
    inputs: list[tuple[int, Output]]
    alone: bool
    """Whether it is also taken as if it had never lived."""
    wanted: Counter[Result] | None = None
    """What its results must be once all has been read and has ended, where there is an oracle."""


def is_web(seed: int) -> bool:
    return seed % 10 in (1, 6)


def variant_of_seed(seed: int) -> Variant:
    return variant_of(Random(f"variant {seed}"))


def web_of_seed(seed: int) -> Web:
    """One in four of them has circles."""
    return web_of(Random(f"web {seed}"), circles=seed % 20 == 11)


def given(seed: int) -> Given:
    """What a seed says."""
    return _given_web(seed) if is_web(seed) else _given_programs(seed)


def _given_web(seed: int) -> Given:
    web, random = web_of_seed(seed), Random(f"spark {seed}")
    found = pieces(web, random, most=random.choice((5, 30, 60)))
    left = [list(records(web, {name: some})) for name, some in found.items() if some]
    inputs: list[tuple[int, Output]] = []
    while left:
        one = random.choice(left)
        count = random.choice((1, 4, 30))
        inputs += [(partition_of(each.key or b"", web.partitions), each) for each in one[:count]]
        del one[:count]
        left = [some for some in left if some]
    return Given(web.app, inputs, True, None if web.circles else oracle(web, found))


def _given_programs(seed: int) -> Given:
    variant, random = variant_of_seed(seed), Random(f"spark {seed}")
    model = build(variant)
    log: Records = {}
    Feed(model, variant, random, most=random.choice((5, 40, 40, 80))).fill(log)
    disorder = random.choice((1, 5, 1_000))
    placed = [
        (at + random.uniform(0, disorder), partition, Output(topic, one.key, one.value, one.timestamp_ms))
        for (topic, partition), some in log.items()
        for at, one in enumerate(some)
    ]
    placed.sort(key=lambda one: one[0])
    return Given(
        model.app,
        [(partition, output) for _, partition, output in placed],
        variant.messages and seed % 2 == 0,
    )


def app_of(seed: int, *, doomed: bool = False) -> str:
    """How a rebuild names it."""
    return f"{MODULE}:{'doomed' if doomed else 'seed'}_{seed}"


def __getattr__(name: str) -> tr.App:
    kind, _, seed = name.partition("_")
    if kind not in ("seed", "doomed") or not seed.isdigit():
        raise AttributeError(name)
    number = int(seed)
    return web_of_seed(number).app if is_web(number) else build(variant_of_seed(number)).app


# --- in another process ----------------------------------------------------------------------------------------------


class Doom:
    """Ends this process at the end of a countdown of operations: files touched, handlers called."""

    left = 0
    met = Path()
    handling = False
    """Whether only handlers and writes to the state count."""

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.met.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def file(self, event: str, _: tuple[object, ...]) -> None:
        if self.left > 0 and not self.handling and event in _FILES:
            self.tick()

    def arm(self, unit: Unit, marks: Path) -> None:
        """Unless it has died often enough."""
        random = Random(f"{unit.job.request.app} {unit.name}")
        deaths = [random.randint(1, _OPERATIONS) for _ in range(random.randint(unit.kind == "task", DEATHS))]
        for number, left in enumerate(deaths):
            mark = marks / f"{unit.job.id}-{unit.name}-{number}"
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                continue
            self.met = mark.with_name(f"{mark.name}{MET}")
            self.left, self.handling = left, random.random() < 0.5
            return


doom = Doom()


def short_ways() -> None:
    """Commits and looks in canonical order close together, as histories are short."""
    canonical_unit._COMMIT_EVERY, canonical_history._LOOK_EVERY = COMMIT_EVERY, LOOK_EVERY


def never_synced(_: Any, /) -> None:
    """In place of ``os.fsync``, which is half of the time: processes die here, and machines do not."""


def in_its_own_way(unit: Unit) -> None:
    """Sizes that may not matter."""
    random = Random(f"{unit.job.id} {unit.name}")
    intake.WINDOW = random.choice((1, 2, 7, 10_000))
    stretches.AT_ONCE = random.choice((1, 7, 10_000))
    driving.MOVED_AT_ONCE = random.choice((1, 100, 500_000))
    driving.ENTRIES_AT_ONCE = random.choice((1, 10, 200_000))
    output_files._ROWS = random.choice((1, 5, 50_000))
    chosen: dict[str, Any] = {
        "cache_bytes": random.choice((0, 3_000, 20_000, 1 << 28)),
        "timers_in_memory": random.choice((1, 2, 3, 7, 200_000)),
        "reload": random.random() < 0.4,
        "firing_budget": random.choice((1, 2, 10_000)),
        "checked": random.random() < 0.3,
    }
    # setattr, as it is a class to the type checkers
    setattr(request, "TaskSettings", lambda **given: TaskSettings(**{**given, **chosen}))  # noqa: B010


def elsewhere(marks: Path) -> None:
    """Run units in its own way from now on, the doomed ones to their death."""
    short_ways()
    setattr(os, "fsync", never_synced)  # noqa: B010 (it takes anything)

    def wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_it(unit: Unit, *arguments: Any) -> Any:
            in_its_own_way(unit)
            if ":doomed_" in unit.job.request.app:
                doom.arm(unit, marks)
            try:
                return run(unit, *arguments)
            finally:
                doom.left = 0
                if not gc.get_freeze_count():
                    gc.freeze()  # Spark has garbage looked for after each task, and most is modules

        return run_it

    for kind, run in units._RUNS.items():
        units._RUNS[kind] = wrapped(run)
    observe: Any = Interpreter.observe

    def observed(self: Any, *arguments: Any) -> None:
        if doom.left > 0:
            doom.tick()
        observe(self, *arguments)

    write = RocksStore.write

    def written(self: RocksStore, *arguments: Any) -> None:
        if doom.left > 0:
            doom.tick()
        write(self, *arguments)
        if doom.left > 0:
            doom.tick()

    setattr(Interpreter, "observe", observed)  # noqa: B010 (it takes anything)
    setattr(RocksStore, "write", written)  # noqa: B010 (it takes anything)
    sys.addaudithook(doom.file)


if ELSEWHERE in os.environ:
    elsewhere(Path(os.environ[ELSEWHERE]))
