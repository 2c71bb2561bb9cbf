"""Any code may follow a tape if its results are those that are recorded. The first difference ends the run, and names both versions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.core.errors import ReplayDivergedError
from tailrace.core.records import Output
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tests.cli.commands import run
from tests.history.rebuilding import any_app, lived
from tests.history.rebuilding.lived import done, live, rebuilt

EACH, DEPLOYS, KEYS = 20, ("1", "2", "3"), 3


class Event(msgspec.Struct):
    key: tr.Key[str]
    at: tr.EventTime[int]
    number: int


class Seen(msgspec.Struct):
    key: tr.Key[str]
    count: int


def right(_: Event) -> int:
    return 1


def made(version: str, counts: Callable[[Event], int] = right, *, stored: int = 0) -> str:
    """A version of the app. ``counts``: how many an event counts for; ``stored``: what it stores besides, and emits nowhere."""
    app = tr.App("deployed", partitions=1, version=version)
    events = app.topic("events", Event, out_of_order=0)
    seen = app.topic("seen", Seen)

    @app.actor
    class Counter(tr.Actor):
        count: int = 0
        other: int = 0

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += counts(event)
            self.other = stored
            ctx.emit(seen, Seen(ctx.key, self.count))

    return any_app.place(app)


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    """A service that three versions of equal results have run."""
    for number, version in enumerate(DEPLOYS):
        events = [Event(f"k{at % KEYS}", 10 * at, at) for at in range(EACH * number, EACH * (number + 1))]
        some = [Output("events", one.key.encode(), msgspec.json.encode(one), one.at) for one in events]
        lived.append(tmp_path, some, {} if number else {"events": 1})
        lived.live_on(tmp_path, made(version), ends=False)
    return tmp_path


def replayed(folder: Path, app: str, *, compare: bool = False) -> ReplayReport:
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return replay(find_app(app).plan(), log, ReplayOptions(compare=compare, any_environment=True))


def commit_of(folder: Path, app: str, offset: int) -> tuple[int, int, int]:
    """The commit that has taken an offset of the events, and the offsets from which and to which it has."""
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        history, at = AppHistory(find_app(app).plan(), log), 0
        for record in history.tapes(0, 1 << 60):
            start = at
            at += sum(one[2] for one in tape.causes_of(record.causes) if one[:2] == [tape.RUN, 0])
            if start <= offset < at:
                return record.number, start, at - 1
    raise AssertionError(offset)


def test_a_history_of_several_deploys_is_replayed_by_the_last_code(deployed: Path) -> None:
    app = made("3")
    said = [
        f"version {one!r} of the app has written a part of the tape; the results of this code, version '3', are equal"
        for one in ("1", "2")
    ]
    for compare in (False, True):
        report = replayed(deployed, app, compare=compare)
        assert (report.records, report.differences.count) == (EACH * len(DEPLOYS), 0)
        assert [one for one in report.notes if "version" in one] == said
    made_of, snapshot = done(deployed, app)
    assert (made_of.order, made_of.notes) == ("tape", said)
    assert rebuilt(snapshot) == live(deployed, find_app(app).plan())


@pytest.mark.parametrize("first", [0, 27, EACH * len(DEPLOYS) - 1])
def test_a_change_is_named_at_the_first_commit_that_differs(deployed: Path, first: int) -> None:
    """And by which version that was written."""
    app = made("4", lambda event: 1 + (event.number == first))
    number, start, end = commit_of(deployed, app, first)
    then = DEPLOYS[first // EACH]
    offsets = f"{start} to {end}" if end > start else str(start)
    said = (
        f"commit {number} of app 'deployed' partition 0 came out differently (other outputs); it has taken events {offsets}. "
        f"The tape was written by version {then!r}, and this code is version '4'"
    )
    with pytest.raises(ReplayDivergedError) as caught:
        replayed(deployed, app)
    assert caught.value.what == said
    assert "--order stages" in caught.value.hint
    with pytest.raises(ReplayDivergedError) as caught:
        done(deployed, app, order="tape")
    assert caught.value.what == said
    report = replayed(deployed, app, compare=True)
    assert any(said in note for note in report.notes)
    assert {one.kind for one in report.differences.shown} == {"output"}
    assert {one.key for one in report.differences.shown} == {f"'k{first % KEYS}'"}
    ended = run("replay", app, "--log", deployed / "log")
    assert (ended.code, said in ended.err) == (1, True)


def test_a_change_that_only_the_state_shows_is_found_at_the_end(deployed: Path) -> None:
    app = made("3", stored=7)
    with pytest.raises(
        ReplayDivergedError, match=r"3 rows are not what the service has stored .*--order stages"
    ):
        done(deployed, app)
    report = replayed(deployed, app, compare=True)
    assert {(one.kind, one.key) for one in report.differences.shown} == {
        ("state", f"'k{one}'") for one in range(KEYS)
    }


def test_another_version_goes_in_stages_unless_the_tape_is_asked_for(deployed: Path) -> None:
    app = made("4", lambda _: 2)
    report, snapshot = done(deployed, app)
    assert report.order == "stages"
    assert "the tape was written by version '3', and this code is version '4': in stages" in report.notes
    counts = {key: one["count"] for (_, key), one in lived.fields(rebuilt(snapshot)).items()}
    assert counts == {f"k{one}": 2 * EACH * len(DEPLOYS) // KEYS for one in range(KEYS)}
