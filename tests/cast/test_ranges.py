"""A stage that is divided into ranges of keys makes the bytes of one that is not, whatever handlers do: rows, cut, messages, outputs."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.key_ranges import RangeUnits
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import OptionError, ReplayDivergedError
from tailrace.core.records import Output
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Engine, LocalEngine
from tailrace.history.rebuilding.output_files import read_outputs
from tailrace.history.rebuilding.planning import plan_rebuild
from tailrace.state.snapshots import Place, Snapshot
from tests.history.rebuilding import any_app, lived
from tests.history.rebuilding.planted import app_of, fed, has_stages
from tests.history.rebuilding.struck_engines import Stopping


class Hit(msgspec.Struct, frozen=True):
    key: str
    at: int
    kind: int


class Told(msgspec.Struct, frozen=True):
    kind: int


def _busy() -> tr.App:
    """Timers that set timers before them, of both domains; failures, late events, random numbers, messages between the keys."""
    app = tr.App("busy", partitions=2)
    late = app.topic("late", Hit, key="key", event_time="at")
    out = app.topic("out", Hit, key="key", event_time="at")
    hits = app.topic(
        "hits", Hit, key="key", event_time="at", out_of_order=30, late=late, on_error="dead-letter"
    )
    more = app.topic("more", Hit, key="key", event_time="at", out_of_order=10)

    @app.actor
    class First(tr.Actor, order="event-time"):
        n: int = 0
        seen: tr.MapState[int, int]

        @tr.process(hits)
        def hit(self, event: Hit, ctx: tr.Context[str]) -> None:
            if event.kind == 1:
                raise ValueError("not this one")
            self.n += ctx.random.randrange(1_000)
            self.seen[event.kind] = self.n
            ctx.send(Second, f"k{(event.at + event.kind) % 9}", Told(event.kind))
            ctx.set_timer(event.at + 17 * (event.kind - 3), name=f"due:{event.kind % 3}")
            if event.kind == 2:
                ctx.set_processing_timer(event.at + 40, name="clock")

        @tr.process(more)
        def other(self, event: Hit, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Hit(ctx.key, event.at, self.n))
            ctx.set_timer(event.at, name=f"due:{event.kind % 3}")

        @tr.on_timer("due")
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Hit(ctx.key, ctx.event_time, -1))
            self.n += 1
            if self.n % 5 == 0:
                raise ValueError("nor this timer")
            if self.n % 3 == 0:
                ctx.set_timer(ctx.event_time - 25, name="past")

        @tr.on_timer("past")
        def past(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Hit(ctx.key, ctx.event_time, -2))
            ctx.send(Second, f"k{self.n % 9}", Told(7))

        @tr.on_processing_timer("clock")
        def clock(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Hit(ctx.key, ctx.event_time, -4))
            ctx.set_timer(ctx.event_time - 1_000, name="past")

    @app.actor
    class Second(tr.Actor, order="event-time"):
        kinds: list[int] = tr.field(default_factory=list)

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            self.kinds.append(message.kind)
            ctx.emit(out, Hit(ctx.key, ctx.event_time, message.kind))

    @app.actor
    class Third(tr.Actor, order="arrival"):
        ids: list[str] = tr.field(default_factory=list)

        @tr.process(hits)
        def hit(self, event: Hit, ctx: tr.Context[str]) -> None:
            self.ids.append(str(ctx.uuid()))
            ctx.set_timer(event.at - 5)
            ctx.set_timer(event.at + 20)

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Hit(ctx.key, ctx.event_time, -3))

    @app.process(hits)
    def passed(event: Hit, ctx: tr.Context[str]) -> None:
        ctx.emit(out, Hit(event.key, event.at, 100))

    return app


def _hits(random: Random, count: int, first: int = 0) -> list[Output]:
    found = list[Output]()
    for n in range(first, first + count):
        one = Hit(f"k{random.randrange(9)}", 1_000 + 4 * n + random.randrange(60), random.randrange(7))
        topic = random.choice(("hits", "hits", "more"))
        found.append(Output(topic, one.key.encode(), msgspec.json.encode(one), one.at + random.randrange(9)))
    found.insert(count // 2, Output("hits", b"k1", b"no json", 2_000))
    return found


def made(folder: Path, app: str, split: int, engine: Engine | None = None, **options: Any) -> list[Any]:
    """All that a rebuild makes."""
    place = folder / f"outputs-{split}"
    options = {"outputs": f"parquet:{place}", "store": "memory", "uri": str(folder / f"to-{split}")} | options
    asked = lived.request(folder, app, order="stages", split=split, **options)
    report = rebuild(asked, engine or LocalEngine(1))
    snapshot = lived.opened(asked, report)
    assert snapshot.verify() == []
    return [
        [of_task(snapshot, one.partition) for one in snapshot.manifest.tasks],
        [
            [*read_outputs(Place.at(str(file)))]
            for file in sorted((place / snapshot.manifest.app / snapshot.manifest.id).glob("*.parquet"))
        ],
        (report.events, report.timers, report.late, report.outputs, report.refused, report.dead_letters),
        (report.failed_here, sorted(report.notes), report.replayed),
    ]


def of_task(snapshot: Snapshot, number: int) -> list[Any]:
    one = snapshot.manifest.task(number)
    return [
        one.cut,
        one.schema,
        one.waiting,
        [*snapshot.rows(number)],
        [*snapshot.messages(number)],
        [(file.rows, file.sha256) for file in one.files],
    ]


def equal(folder: Path, app: str, *splits: int, **options: Any) -> list[Any]:
    wanted = made(folder, app, 1, **options)
    for split in splits:
        for found, of in zip(made(folder, app, split, **options), wanted, strict=True):
            assert found == of
    return wanted


@pytest.mark.parametrize("until", ["end", "as of", "limit", "base"])
def test_an_app_that_does_everything(until: str, tmp_path: Path) -> None:
    app, random = any_app.place(_busy()), Random(until)
    topics: dict[str, int] = dict.fromkeys(("hits", "more", "late", "out"), 2)
    lived.append(tmp_path, _hits(random, 400), topics)
    options: dict[str, Any] = {"on_error": "dead-letter"}
    if until == "as of":
        options["as_of_ms"] = 2_500
    elif until == "limit":
        options["until"] = Limits({"hits": {0: 150, 1: 120}})
    elif until == "base":
        made(tmp_path, app, 1, name="first", **options)
        lived.append(tmp_path, _hits(random, 300, 400), {})
        options |= {"base": str(tmp_path / "to-1"), "base_id": "first"}
    (_, outputs, (_, timers, late, count, refused, failed), (failed_here, *_)) = equal(
        tmp_path, app, 2, 5, **options
    )
    assert sum(map(len, outputs)) > 200
    assert min(timers, late, count, failed) > 5
    assert failed_here
    assert until in ("limit", "base") or refused == 1


@pytest.mark.one_seed_in(25)
def test_random_apps(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        if has_stages(seed):
            folder = tmp_path / str(seed)
            fed(folder, seed)
            equal(folder, app_of(seed, "b"), *Random(seed).sample((2, 3, 5), 1), on_error="dead-letter")


def test_processes_resumed_with_rocks(tmp_path: Path) -> None:
    """Each range runs once, though the driver is killed, and each in any process."""
    app = any_app.place(_busy())
    lived.append(tmp_path, _hits(Random(3), 400), dict.fromkeys(("hits", "more", "late", "out"), 2))
    options: dict[str, Any] = {"on_error": "dead-letter", "store": "rocks"}
    wanted = made(tmp_path, app, 1, **options)
    ran = list[str]()
    for most in (3, 2, 4, 1):
        stopping = Stopping(most)
        with pytest.raises(InterruptedError):
            made(tmp_path, app, 3, stopping, **options)
        ran += stopping.ran
    last = Stopping(0)
    *found, (*counts, _) = made(tmp_path, app, 3, last, **options)
    assert [*found, counts] == [*wanted[:-1], [*wanted[-1][:-1]]]
    ran += last.ran
    assert len(ran) == len({*ran}) == 2 * 2 * (3 + 1), "partitions, stages, ranges and the whole"


def test_the_plan_says_how_it_is_divided(tmp_path: Path) -> None:
    app = any_app.place(_busy())
    lived.append(tmp_path, _hits(Random(3), 40), dict.fromkeys(("hits", "more", "late", "out"), 2))
    plan = plan_rebuild(lived.request(tmp_path, app, split=3))
    assert "in 2 stages, each in 3 ranges of keys" in plan.lines()[0]
    assert "--split is given: in stages" in plan.notes[-1] or "there is no tape" in str(plan.notes)


def test_ranges_that_do_not_come_to_one_cut_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = any_app.place(_busy())
    lived.append(tmp_path, _hits(Random(3), 60), dict.fromkeys(("hits", "more", "late", "out"), 2))
    refuse = RangeUnits.refuse

    def miscounted(self: RangeUnits, *of_record: Any) -> int:
        self.totals.late += self.range.number
        return refuse(self, *of_record)

    monkeypatch.setattr(RangeUnits, "refuse", miscounted)
    with pytest.raises(ReplayDivergedError, match="have not come to one cut"):
        made(tmp_path, app, 2, on_error="dead-letter")


def test_what_makes_keys_depend_on_each_other_is_refused(tmp_path: Path) -> None:
    app = any_app.place(_busy())
    lived.append(tmp_path, _hits(Random(3), 60), dict.fromkeys(("hits", "more", "late", "out"), 2))
    with pytest.raises(OptionError, match="--split does not go with --key"):
        made(tmp_path, app, 2, keys=("k1",), outputs="none")
    with pytest.raises(OptionError, match="--order tape does not go with --split"):
        rebuild(lived.request(tmp_path, app, order="tape", split=2), LocalEngine(1))
