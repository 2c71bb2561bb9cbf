"""The property: what a service has come to, what Spark makes of its log, and what this machine makes of it, is the same."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec
from pyspark.sql import SparkSession

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.errors import TailraceError
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Engine, LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import MANIFEST
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import PARQUET, Destination, Execution, Request, Source
from tailrace.history.rebuilding.results import UnitResult
from tailrace.spark.engine import SparkEngine
from tailrace.state.snapshots import Snapshots
from tests.cast.webs import Result
from tests.proof.seeds import told
from tests.spark.proof.gathering import Gathering
from tests.spark.proof.lives import Life, Whole, assert_same, figures, files, lived, made, never_lived
from tests.spark.proof.seeded import ELSEWHERE, MET, app_of, given

HASH_SEED = 417
TIME_ZONE = "Asia/Kathmandu"

Outcome: TypeAlias = RebuildReport | TailraceError


@contextmanager
def abroad(spark: SparkSession, marks: Path) -> Generator[Engine]:
    """Spark, whose workers have another hash seed, live in another time zone, and go about units in their own way."""
    environment: dict[str, Any] = spark.sparkContext.environment
    before = dict(environment)
    marks.mkdir(exist_ok=True)
    environment |= {ELSEWHERE: str(marks), "TZ": TIME_ZONE, "PYTHONHASHSEED": str(HASH_SEED)}
    try:
        yield SparkEngine(spark)
    finally:
        environment.clear()
        environment.update(before)


class Case:
    """One seed: what there is of it, and what is asked."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder / str(seed)
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        one = given(seed)
        self.plan: Plan = one.app.plan()
        self.alone, self.wanted = one.alone, one.wanted

    def live(self) -> None:
        life = Life(self.seed, self.folder)
        life.trace = self.trace
        life.live()
        self.truth = lived(self.folder, self.plan)
        self.counts = figures(self.folder, self.plan)
        self.counts["faults"] = life.faults
        self.counts["messages under way"] = sum(map(len, self.truth.messages))
        if not life.ended:
            self.wanted = None
        if self.wanted is not None:
            self._right(self.truth, "live")
            self.counts["held against an oracle"] += 1
        if self.alone:
            never_lived(self.seed, self.folder / "never")

    def asked(self, where: str, *, order: str = "tape", log: str = "", doomed: bool = False) -> Request:
        """``where`` it is done decides how. Where it is doomed, state is on disk, to be gone on with."""
        random = Random(f"{self.seed} {where} {order} {log}")
        to = self.folder / f"{where}-{order}{log}{'-doomed' if doomed else ''}"
        return Request(
            app=app_of(self.seed, doomed=doomed),
            source=Source(log=str(self.folder / log / "log")),
            to=Destination(uri=str(to), outputs=f"parquet:{to / 'outputs'}"),
            order="tape" if order == "tape" else "canonical",
            execution=Execution(store="rocks" if doomed or random.random() < 0.15 else "memory"),
        )

    def along_the_tape(self, where: str) -> list[Request]:
        return [self.asked(where)]

    def canonical(self, where: str) -> list[Request]:
        return [self.asked(where, order="canonical", log=log) for log in ("", "never")[: 1 + self.alone]]

    def doomed(self) -> list[Request]:
        return [self.asked("spark", order=order, doomed=True) for order in ("tape", "canonical")]

    def compare(self, done: Sequence[tuple[Request, Outcome]]) -> None:
        """What Spark has made of it, with what was and with what is made of it here."""
        here = LocalEngine(1)
        for order, asked in (("tape", self.along_the_tape("local")), ("canonical", self.canonical("local"))):
            local = [(one, attempt(one, here)) for one in asked]
            abroad = [(one, outcome) for one, outcome in done if one.order == order]
            if order == "tape":
                self._same([*local, *abroad], self.truth)
            else:
                for one in local:
                    self._same(
                        [one, *(other for other in abroad if other[0].source.log == one[0].source.log)], None
                    )

    def _right(self, whole: Whole, what: str, *, ended: bool = True) -> None:
        """Its results are those of the oracle, if it has one; without an end, those that a watermark has passed."""
        if self.wanted is None:
            return
        outputs = [one for some in whole.outputs for one in some if one.topic == "results"]
        came = Counter(msgspec.json.decode(one.value or b"", type=Result) for one in outputs)
        missing, wrong = self.wanted - came, came - self.wanted
        assert not wrong, f"{what}: wrong {wrong}"
        cuts = [tape.decode_cut(one.cut) for one in whole.states if one.cut is not None]
        assert not any(cut.totals.late for cut in cuts), f"{what}: late"
        if not ended:
            reached = min((cut.watermark for cut in cuts), default=NO_WATERMARK)
            missing = Counter({one: count for one, count in missing.items() if one.at <= reached})
        assert not missing, f"{what}: missing {missing}"

    def _same(self, done: Sequence[tuple[Request, Outcome]], truth: Whole | None) -> None:
        """All of them are the same, and what was. The first is of this machine."""
        (first, outcome), *_ = done
        if isinstance(outcome, TailraceError):
            assert truth is None, outcome
            assert {str(other) for _, other in done} == {str(outcome)}
            self.counts["fail in canonical order"] += 1
            return
        written = files(first, self.plan, outcome.snapshot)
        for asked, one in done:
            if isinstance(one, TailraceError):
                raise one
            what = f"{Path(asked.to.uri).name}"
            self.trace.append(f"{what}: {'; '.join(one.notes)}")
            whole = made(asked, self.plan, one.snapshot)
            lived = asked.source.log == str(self.folder / "log") and all(
                one.cut is not None for one in self.truth.states
            )
            self._right(whole, what, ended=asked.order == "tape" or lived)
            if truth is not None:
                assert_same(truth, whole, what)
            truth = truth or whole
            assert files(asked, self.plan, one.snapshot) == written, f"{what}: the files differ"


def attempt(asked: Request, engine: Engine) -> Outcome:
    try:
        return rebuild(asked, engine)
    except TailraceError as error:
        return error


class Looking:
    """An engine beside which somebody looks at all snapshots that there are, whenever a unit has ended."""

    name = "looking"

    def __init__(self, engine: Engine, asked: Sequence[Request]) -> None:
        self._engine = engine
        self._places = [
            (Snapshots(one.to.uri, "proof"), Path(one.to.outputs.removeprefix(PARQUET))) for one in asked
        ]

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        for one in self._engine.run(units, on_progress):
            self.look()
            yield one

    def look(self) -> int:
        """What can be seen is whole. How many there are."""
        seen = 0
        for snapshots, outputs in self._places:
            for manifest in snapshots.list():
                assert snapshots.open(manifest.id).verify() == []
                assert (outputs / "proof" / manifest.id / MANIFEST).is_file()
                seen += 1
        return seen

    def close(self) -> None:
        self._engine.close()


def prove_doomed(spark: Engine, seed: int, folder: Path, marks: Path) -> Counter[str]:
    """A seed whose units die, again and again; if it is odd, each of them runs twice at the same time."""
    case = Case(seed, folder)
    with told(seed, case.trace):
        case.live()
        asked = case.doomed()
        looking = Looking(spark, asked)
        gathering: Gathering[RebuildReport] = Gathering(looking, copies=1 + seed % 2)
        outcomes = gathering.all([partial(rebuild, one) for one in asked])
        case.compare(list(zip(asked, outcomes, strict=True)))
        met = list(marks.glob(f"*{MET}"))
        shutil.rmtree(marks)
        marks.mkdir()
        return Counter({"deaths": len(met), "rebuilds": len(asked), "seen": looking.look()})


def prove(spark: Engine, seeds: Sequence[int], folder: Path) -> Counter[str]:
    """All seeds, in few jobs of Spark. Returns what there was in them."""
    cases = [Case(seed, folder) for seed in seeds]
    for case in cases:
        with told(case.seed, case.trace):
            case.live()
    wanted = [
        (case, asked) for case in cases for asked in (*case.along_the_tape("spark"), *case.canonical("spark"))
    ]
    gathering: Gathering[RebuildReport] = Gathering(spark)
    outcomes = gathering.all([partial(rebuild, asked) for _, asked in wanted])
    for case in cases:
        with told(case.seed, case.trace):
            case.compare(
                [
                    (asked, outcome)
                    for (of, asked), outcome in zip(wanted, outcomes, strict=True)
                    if of is case
                ]
            )
        shutil.rmtree(case.folder)
    counts = sum((case.counts for case in cases), Counter[str]())
    return counts + Counter({"jobs of Spark": gathering.jobs, "units": gathering.units, "seeds": len(cases)})
