"""What ``tailrace status --stored`` counts: against plain Python over the events, and the records of the changelog."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core import rows
from tailrace.history.reading.stretches import scan
from tailrace.history.status.inspection import AppReport, Stored, inspect_app
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.testing import Harness
from tests.cli.commands import done
from tests.library.random_programs import program, records
from tests.library.test_joins import A, B

Sent = list[tuple[str, int]]
"""Key and event time."""
FAR = (-(10**9), 10**9)


def every_kind() -> tuple[tr.App, Any, Any]:
    """All operators over two topics in the order of event time, and a field of windows that takes late events."""
    app = tr.App("kinds", partitions=1)
    lefts = app.topic("lefts", A, time_range=FAR)
    rights = app.topic("rights", B, time_range=FAR)
    app.window("tumbling", lefts, windows.tumbling(10), agg.count())
    app.window("sliding", lefts, windows.sliding(20, every=10), agg.count())
    app.window("sessions", lefts, windows.sessions(7), agg.count())
    app.window("threes", lefts, windows.count(3), agg.count())
    app.join("joined", lefts, rights, within=(-5, 8), how="full")
    app.window_join("together", lefts, rights, windows.tumbling(10))
    app.asof("version", lefts, rights, keep=9)
    app.gather("gathered", lefts, rights, within=12)
    app.dedupe("once", lefts, by="n", within=6)
    app.limit("limited", lefts, 1, per=10)
    app.top("best", lefts, 2, by=lambda one: one.n % 3, by_type=int, of="n")

    @app.actor
    class Fields(tr.Actor):
        tens: tr.Windows[A, int] = tr.windowed(windows.tumbling(10), agg.count(), lateness=25)
        gaps: tr.Windows[A, int] = tr.windowed(windows.sessions(7), agg.count())

        @tr.process(lefts)
        def take(self, event: A, ctx: tr.Context[str]) -> None:
            self.tens.add(event)
            self.gaps.add(event)

    return app, lefts, rights


def floor(time: int) -> int:
    return time // 10 * 10


def sessions(sent: Sent) -> list[int]:
    """The last event of each session."""
    found = []
    for key in {one for one, _ in sent}:
        times = sorted(time for one, time in sent if one == key)
        found += [one for one, after in zip(times, [*times[1:], 10**9], strict=True) if after - one > 7]
    return found


def cases(lefts: Sent, rights: Sent, mark: int) -> int:
    """How many keys have an open case, of those that are complete with one of each, or after 12."""
    found = 0
    for key in {one for one, _ in lefts + rights}:
        since, has = 0, set[int]()
        merged = [(t, side) for side, sent in enumerate((lefts, rights)) for one, t in sent if one == key]
        for time, side in sorted(merged):
            if has and time > since + 12:
                has = set()
            since = since if has else time
            has.add(side)
            if len(has) == 2:
                has = set()
        found += bool(has) and since + 12 > mark
    return found


def wanted(lefts: Sent, rights: Sent, mark: int) -> dict[str, dict[str, int]]:
    """What is open once the watermark has reached ``mark``; joins have handled what is not after it."""
    ordered = [[(key, time) for key, time in sent if time <= mark] for sent in (lefts, rights)]
    tens = len({(key, floor(time)) for key, time in lefts if floor(time) + 9 > mark})
    slides = {(key, floor(time) - back) for key, time in lefts for back in (0, 10)}
    gaps = sum(last + 7 > mark for last in sessions(lefts))
    newest = dict(ordered[1])
    by_key = [sum(one == key for one, _ in lefts) for key in {one for one, _ in lefts}]
    return {
        "tumbling": {"windows": tens},
        "sliding": {"windows": sum(start + 19 > mark for _, start in slides)},
        "sessions": {"sessions": gaps},
        "threes": {"windows": sum(count % 3 > 0 for count in by_key)},
        "joined": {
            "lefts": sum(time + 8 > mark for _, time in ordered[0]),
            "rights": sum(time + 5 > mark for _, time in ordered[1]),
        },
        "together": {
            name: sum(floor(time) + 9 > mark for _, time in sent)
            for name, sent in zip(("lefts", "rights"), ordered, strict=True)
        },
        "version": {"lefts": 0, "rights": sum(time + 9 > mark for time in newest.values())},
        "gathered": {"cases": cases(ordered[0], ordered[1], mark)},
        "once": {"ids": sum(time + 6 > mark for _, time in lefts)},
        "limited": {"periods": tens},
        "best": {"names": len({(key, at % 3) for at, (key, _) in enumerate(lefts)})},
        "Fields": {"tens.windows": tens, "gaps.sessions": gaps},
    }


def stored_in(report: AppReport) -> dict[str, Stored]:
    (task,) = report.tasks
    return {one.name: one.stored for one in task.operators if one.stored is not None}


def positive(found: Iterable[tuple[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    return {name: {what: n for what, n in some.items() if n} for name, some in found}


@pytest.mark.one_seed_in(125)
@pytest.mark.parametrize("hot", [False, True])
def test_what_is_open_is_what_plain_python_says(hot: bool, seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        app, *topics = every_kind()
        sent: tuple[Sent, Sent] = ([], [])
        with Harness(app, checked=False) as h:
            time = 0
            for number in range(45):
                time += random.choice((0, 1, 3, 15) if not hot or number % 20 == 0 else (0, 0, 0, 1))
                side = random.randrange(2)
                key = "k" if hot else random.choice("abc")
                sent[side].append((key, time))
                h.send(topics[side], (A, B)[side](key, time, len(sent[side]) - 1))
                if random.random() < 0.1:
                    for one, topic in enumerate(topics):
                        sent[one].append(("clock", time))
                        h.send(topic, (A, B)[one]("clock", time, len(sent[one]) - 1))
                    h.commit()
                    stored = stored_in(inspect_app(h.plan, h.log, 0, lambda _: None, with_stored=True))
                    now = positive((name, one.open) for name, one in stored.items())
                    assert now == positive(wanted(*sent, time - 1).items()), f"seed {seed}, time {time}"
                    _check_sizes(h, app, stored)
            h.end_of_input()
            h.commit()
            stored = stored_in(inspect_app(h.plan, h.log, 0, lambda _: None, with_stored=True))
            last = {name: some for name, some in wanted(*sent, 10**9).items() if any(some.values())}
            assert positive((name, one.open) for name, one in stored.items() if one.keys) == positive(
                last.items()
            )
            assert {"best"} <= set(last) <= {"best", "threes"}


def _check_sizes(h: Harness, app: tr.App, stored: dict[str, Stored]) -> None:
    kept: dict[bytes, bytes] = {}
    for record in scan(h.log, h.plan.changelog_topic, 0):
        assert record.key is not None
        kept.pop(record.key, None)
        if record.value is not None:
            kept[record.key] = record.value
    for name, actor in app.actors.items():
        cls: Any = actor
        mine = {row: value for row, value in kept.items() if row.startswith(rows.actor_prefix(name))}
        assert stored[name].rows == len(mine)
        assert stored[name].bytes == sum(len(row) + len(value) for row, value in mine.items())
        assert stored[name].keys == len(h.keys(cls))
        assert stored[name].timers == sum(len(h.timers(cls, key)) for key in h.keys(cls))


def test_expiries_are_no_timers_and_actors_of_users_have_nothing_open() -> None:
    app = tr.App("ids", partitions=1)
    events = app.topic("events", A, time_range=FAR)

    @app.actor
    class Seen(tr.Actor):
        opened: int = 0
        ids: tr.MapState[int, None] = tr.field(ttl=50)

        @tr.process(events)
        def see(self, event: A, ctx: tr.Context[str]) -> None:
            self.opened += 1
            self.ids[event.n] = None
            ctx.set_timer(event.at + 100, "later")

        @tr.on_timer("later")
        def later(self, ctx: tr.Context[str]) -> None: ...

    with Harness(app) as h:
        h.send(events, *(A("k", 1, n) for n in range(5)))
        h.commit()
        (found,) = stored_in(inspect_app(h.plan, h.log, 0, lambda _: None, with_stored=True)).values()
        assert (found.keys, found.rows, found.timers, found.open) == (1, 6, 1, {})
        (task,) = inspect_app(h.plan, h.log, 0, lambda _: None).tasks
        assert [one.stored for one in task.operators] == [None]


def test_the_command_sums_over_tasks_in_text_and_has_each_in_json(tmp_path: Path, quiet_logs: None) -> None:
    place, made, app = tmp_path / "log", program(7), "tests.library.random_programs:app_7"
    with closing(EmbeddedLog(place)) as log:
        prepare_log(log, made.app.plan(), create_declared=True)
        before = done("status", app, "--log", place, "--stored").out
        assert "stored: 0 keys, 0 rows, 0 bytes, 0 timers" in before
        log.append_all(records(made.events(300)))
    done("run", app, "--log", place, "--state", tmp_path / "state", "--until-end")
    report = msgspec.json.decode(
        done("status", app, "--log", place, "--stored", "--json").out, type=AppReport
    )
    text = " ".join(done("status", app, "--log", place, "--stored").out.split())
    for number, one in enumerate(report.tasks[0].operators):
        some = [found for task in report.tasks if (found := task.operators[number].stored) is not None]
        assert bool(some) == (one.kind == "actor")
        for what in ("keys", "rows", "bytes", "timers") if some else ():
            total = sum(getattr(found, what) for found in some)
            assert re.search(rf"actor {one.name} stored: [^;a]*?\b{total:,} {what}", text)
    assert "; open: windows" in text
    assert "stored:" not in done("status", app, "--log", place).out


def test_an_inner_join_keeps_an_event_at_most_twice_as_long_as_it_is_needed(seeds: range) -> None:
    for seed in seeds[:10]:
        random = Random(seed)
        app = tr.App("inner", partitions=1)
        topics: Any = app.topic("lefts", A, time_range=FAR), app.topic("rights", B, time_range=FAR)
        app.join("joined", *topics, within=(-5, 8))
        sent: list[tuple[int, int]] = []
        with Harness(app, checked=False) as h:
            time = 0
            for number in range(60):
                time += random.choice((0, 1, 3, 15))
                for side, key in ((number % 2, "k"), (0, "clock"), (1, "clock")):
                    sent.append((side, time))
                    h.send(topics[side], (A, B)[side](key, time, number))
                h.commit()
                (task,) = inspect_app(h.plan, h.log, 0, lambda _: None, with_stored=True).tasks
                (joined,) = [one.stored for one in task.operators if one.stored is not None]
                needed, at_most = (
                    sum(at < time <= at + factor * (8, 5)[side] for side, at in sent) for factor in (1, 2)
                )
                assert needed <= sum(joined.open.values()) <= at_most, f"seed {seed}, time {time}"
            h.end_of_input()
            h.commit()
            assert (
                stored_in(inspect_app(h.plan, h.log, 0, lambda _: None, with_stored=True))["joined"].keys == 0
            )
