"""An instance that is back to its defaults, without timers and entries, has no row, wherever commits fall."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine.query import QueryReader
from tailrace.core.errors import StateLeakError
from tests.core.driven import Driven

MINUTE = 60_000
GIVES = ("count", "share", "word", "fade", "brief", "lasting", "queue", "timer")
DEEDS = (*GIVES, "look", "reset", "reset", "clear", "clear and count", "fail")


class Told(msgspec.Struct, frozen=True):
    key: str
    at: int
    do: str


class Seen(msgspec.Struct, frozen=True):
    key: str
    what: str


def shelf_app() -> tr.App:
    app = tr.App("shelves", partitions=1, on_error="dead-letter")
    told = app.topic("told", Told, key="key", event_time="at")
    seen = app.topic("seen", Seen, key="key")

    @app.actor
    class Shelf(tr.Actor):
        count: int = 0
        share: float = 0  # as a float it has another encoding
        words: list[str] = tr.field(default_factory=list)
        fading: str = tr.field(default="", ttl="2m")
        brief: tr.MapState[str, int] = tr.field(ttl="3m")
        lasting: tr.MapState[str, int]
        queue: tr.ListState[int]

        @tr.process(told)
        def take(self, event: Told, ctx: tr.Context[str]) -> None:
            what = (
                self.count,
                self.share,
                self.words,
                self.fading,
                dict(self.lasting.items()),
                [*self.queue],
            )
            drawn = ctx.random.random()
            ctx.emit(seen, Seen(ctx.key, f"{what} {dict(self.brief.items())} {drawn}"))
            match event.do:
                case "count":
                    self.count += 1
                case "share":
                    self.share = 0.5
                case "word":
                    self.words.append("word")
                case "fade":
                    self.fading = "fresh"
                case "brief" | "lasting":
                    getattr(self, event.do)["entry"] = 1
                case "queue":
                    self.queue.append(1)
                case "timer":
                    ctx.set_timer(event.at + 2 * MINUTE, "reset")
                case "reset":
                    self.reset(ctx)
                case "clear":
                    ctx.clear()
                case "clear and count":
                    ctx.clear()
                    self.count += 1
                case "fail":
                    self.reset(ctx)
                    raise ValueError("told to fail")
                case _:
                    pass

        @tr.on_timer("reset")
        def reset(self, ctx: tr.Context[str]) -> None:
            self.count, self.share, self.words, self.fading = 0, 0, [], ""
            self.brief.clear()
            self.lasting.clear()
            self.queue.clear()
            ctx.cancel_timer("reset")

    @app.actor
    class Label(tr.Actor):
        """Has a required field."""

        text: str
        hits: int = 0

        @tr.process(told)
        def take(self, event: Told, ctx: tr.Context[str]) -> None:
            self.text, self.hits = "", 0
            if event.do == "clear":
                ctx.clear()

    @app.actor
    class Idle(tr.Actor):
        """Only looks."""

        @tr.process(told)
        def take(self, event: Told, ctx: tr.Context[str]) -> None: ...

    return app


APP = shelf_app()
SHELF, LABEL = APP.actors["Shelf"], APP.actors["Label"]


class Life(Driven):
    """A task that notes all that it has put into its changelog."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(APP.plan(), **settings)
        self.logged: list[tuple[bytes, bytes | None]] = []

    def report(self, key: str, at: int, *what: str) -> None:
        self.take(*(Told(key, at, do) for do in what))

    def shelves(self) -> dict[bytes, bytes | None]:
        """Commit; what the changelog gets of the shelves."""
        there = {row for row, _ in self.store.rows()}
        changes = [(row, value) for row, value in self.commit().rows.items() if row[:1] == rows.STATE]
        for row, value in changes:
            # Of a value, not of what hangs on it: an entry that is set and deleted between two commits is
            # logged.
            is_value = not rows.read_state_row(row).rest
            assert value is not None or row in there or not is_value, (
                f"a deletion of what was not there: {row!r}"
            )
        self.logged += changes
        prefix = rows.actor_prefix("Shelf")
        return {row[len(prefix) :]: value for row, value in changes if row.startswith(prefix)}

    def rows(self, actor: str = "Shelf") -> dict[bytes, bytes]:
        prefix = rows.actor_prefix(actor)
        return {row[len(prefix) :]: value for row, value in self.store.rows() if row.startswith(prefix)}


@pytest.fixture(params=[False, True], ids=["plain", "checked"])
def life(request: pytest.FixtureRequest) -> Life:
    return Life(checked=request.param, reload=request.param)


@pytest.mark.parametrize("between", [False, True], ids=["one commit", "a commit between"])
@pytest.mark.parametrize("do", ["fade", "brief", "timer"])
def test_what_ends_by_time_takes_the_row_with_it(life: Life, do: str, between: bool) -> None:
    life.report("a", 0, do)
    if between:
        life.shelves()
        assert b"a\0\0" in life.rows()
    life.report("b", 3 * MINUTE + 1, "look")
    life.shelves()
    assert life.rows() == {}


def test_an_instance_with_a_required_field_is_stored_until_it_is_cleared(life: Life) -> None:
    life.report("a", 0, "look")
    life.shelves()
    assert len(life.rows("Label")) == 1
    life.report("a", 0, "clear")
    life.shelves()
    assert life.rows("Label") == {}


def test_a_bare_instance_takes_no_memory_after_the_commit() -> None:
    life = Life()
    for number in range(50):
        life.report(f"k{number}", 0, "look", "count", "reset")
    life.shelves()
    assert not life.table("Shelf").live
    life.report("a", 0, "count", "lasting")
    life.shelves()
    life.report("a", 0, "reset")
    life.shelves()
    assert not life.table("Shelf").live


def test_a_checked_run_still_finds_what_is_changed_behind_the_back_of_one_that_is_stored() -> None:
    life = Life(checked=True)
    life.report("a", 0, "word")
    life.shelves()
    life.table("Shelf").live["a"].words.append("not mine")
    with pytest.raises(StateLeakError):
        life.report("a", 0, "look")


def test_what_is_stored_depends_on_the_state_alone_wherever_commits_and_restarts_fall(seeds: range) -> None:
    for seed in seeds:
        chance = Random(seed)
        deeds = [
            (chance.choice("ab"), at * chance.choice([1_000, 20_000]), chance.choice(DEEDS))
            for at in range(chance.randrange(2, 30))
        ]
        once = Life(reload=bool(seed % 2))
        often = Life(cache_bytes=chance.choice([0, 1 << 20]), checked=True)
        for key, at, do in deeds:
            once.report(key, at, do)
            often.report(key, at, do)
            if chance.random() < 0.4:
                often.shelves()
                if chance.random() < 0.4:
                    often.start()
        once.shelves()
        often.shelves()
        assert often.state() == once.state(), f"seed {seed}"
        assert [one.value for one in often.outputs] == [one.value for one in once.outputs], f"seed {seed}"
        folded = {row: value for row, value in dict(often.logged).items() if value is not None}
        assert folded == often.state(), f"seed {seed}"
        for key in "ab":
            prefix = rows.actor_prefix("Shelf") + key.encode() + b"\0\0"
            held = {
                row[len(prefix) :]: value for row, value in once.state().items() if row.startswith(prefix)
            }
            assert bool(held) == (b"" in held), f"seed {seed}: nothing hangs on no row"
            held = rows.spread(held)
            found = QueryReader(once.plan, 0, once.store).instance(SHELF, key)
            if found is not None and len(held) == 1:
                assert (found.count, found.share, found.words) != (0, 0.0, []), f"seed {seed}: {key} is bare"
