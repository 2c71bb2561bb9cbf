"""Along the tape, a rebuild has the results that are recorded, or is refused: of all, of some keys, up to a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import OptionError, ReplayDivergedError, SnapshotMismatchError
from tailrace.core.records import Output
from tests.history.rebuilding import any_app, lived, payments
from tests.history.rebuilding.lived import append, done, fields, live_on, rebuilt

APP = "tests.history.rebuilding.payments:app"
CORRECTED = "tests.history.rebuilding.payments:corrected"
EVENTS = payments.payments(150)
MIDDLE_MS = EVENTS[75].at
PARTS: dict[str, dict[str, Any]] = {
    "all": {},
    "keys": {"keys": ("region-1",)},
    "an offset": {"until": Limits({"paid": {0: 20, 1: 20}})},
    "a time": {"until": Limits(watermark_ms=MIDDLE_MS)},
}


def served(folder: Path) -> Path:
    lived.append(folder, payments.outputs(EVENTS), {"paid": 2})
    lived.live_on(folder, APP)
    return folder


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service that has sent twice each amount."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PAYMENTS_WRONG", "amount")
        return served(tmp_path_factory.mktemp("wrong"))


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served(tmp_path_factory.mktemp("right"))


def test_it_is_refused_if_the_code_sends_something_else(wrong: Path) -> None:
    said = r"commit \d+ of app 'payments' partition \d came out differently \(.*outputs.*\); it has taken .*"
    for app, versions in ((APP, "version '1', as this code"), (CORRECTED, "version '1', and .* version '2'")):
        with pytest.raises(ReplayDivergedError, match=f"{said}{versions}.*--order stages"):
            done(wrong, app, order="tape", outputs=f"parquet:{wrong / 'outputs'}")
    assert not list(wrong.glob("outputs/payments/*/*"))


@pytest.mark.parametrize("part", PARTS)
def test_it_is_made_if_the_code_sends_the_same(right: Path, part: str) -> None:
    for app, version in ((APP, ""), (CORRECTED, "version '1' of the app has written a part of the tape")):
        report, _ = done(right, app, order="tape", **PARTS[part])
        assert [note for note in report.notes if "version" in note] == [
            note for note in report.notes if version and version in note
        ]
        assert any("version" in note for note in report.notes) == bool(version)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (PARTS["a time"], "--until stops each partition at a record of its own.*Use --as-of"),
        (
            PARTS["keys"] | {"outputs": "parquet:out"},
            "outputs of some keys cannot be separated.*Leave out --outputs",
        ),
        ({"as_of_ms": 1, "base": "snapshots"}, "--as-of does not go with --from-snapshot"),
        ({"as_of_ms": 1, "until": Limits({"paid": {0: 1}})}, "--as-of does not go with another limit"),
    ],
)
def test_in_stages_what_cannot_be_computed_is_refused(right: Path, part: dict[str, Any], said: str) -> None:
    if "base" in part:
        done(right, APP)
        part = part | {"base": str(right / "snapshots")}
    with pytest.raises(OptionError, match=said):
        done(right, APP, order="stages", **part)


def test_the_tape_is_no_order_of_event_time(right: Path) -> None:
    with pytest.raises(OptionError, match="--as-of does not go with --order tape"):
        done(right, APP, order="tape", as_of_ms=MIDDLE_MS)


@pytest.mark.parametrize(("then", "now"), [("amount", ""), ("", "none"), ("none", ""), ("topic", "")])
def test_it_stops_at_the_first_commit_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, now: str
) -> None:
    third = len(EVENTS) // 3
    for first in range(0, len(EVENTS), third):
        monkeypatch.setenv("PAYMENTS_WRONG", then if first else "")
        lived.append(tmp_path, payments.outputs(EVENTS[first : first + third]), {} if first else {"paid": 2})
        lived.live_on(tmp_path, APP, ends=False)
    monkeypatch.setenv("PAYMENTS_WRONG", "")
    handled: list[str] = []

    def counted() -> str:
        handled.append("")
        return now

    monkeypatch.setattr(payments, "wrong", counted)
    with pytest.raises(ReplayDivergedError, match="came out differently"):
        done(tmp_path, CORRECTED, order="tape")
    # One partition at most has come to its end: the first one if nothing of its differs.
    asked = sum(1 + (one.amount >= payments.LARGE) for one in EVENTS)
    assert 0 < len(handled) < asked * 5 // 6


def test_nothing_continues_from_a_snapshot_as_of_a_time(right: Path, tmp_path: Path) -> None:
    """It has left out events from before its positions."""
    _, snapshot = done(right, APP, as_of_ms=MIDDLE_MS, uri=str(tmp_path))
    with pytest.raises(SnapshotMismatchError, match=r"is as of .* it has left out events"):
        done(right, APP, order="stages", base=str(tmp_path), base_id=snapshot.manifest.id)
    # Two copies of this app cannot run on one log.
    lived.append(tmp_path / "beside", payments.outputs(EVENTS), {"paid": 2})
    with pytest.raises(SnapshotMismatchError, match="which would be lost"):
        lived.live_on(tmp_path / "beside", APP, str(tmp_path))


def test_from_a_limit_a_rebuild_in_stages_does_not_go_on_without_what_was_under_way(right: Path) -> None:
    _, base = done(right, APP, **PARTS["a time"])
    with pytest.raises(SnapshotMismatchError, match="under way to itself"):
        done(right, APP, order="stages", base=str(right / "snapshots"), base_id=base.manifest.id)


VALUES = {1_000_000: 1, 1_100_000: 10, 1_010_000: 100, 1_110_000: 1_000}
"""By time; the third comes behind the second."""


class Reading(msgspec.Struct):
    sensor: tr.Key[str]
    at: tr.EventTime[int]


def made(out_of_order: str) -> str:
    app = tr.App("lateness", partitions=2, version=out_of_order)
    late = app.topic("late-readings", Reading)
    readings = app.topic("readings", Reading, out_of_order=out_of_order, late=late)

    for name, topic in (("InTime", readings), ("Late", late)):
        _summing(app, name, topic)
    return any_app.place(app)


def _summing(app: tr.App, name: str, topic: tr.Topic[Reading, str]) -> None:
    @app.actor(name=name)
    class Sum(tr.Actor):
        total: int = 0

        @tr.process(topic)
        def read(self, event: Reading, ctx: tr.Context[str]) -> None:
            self.total += VALUES[event.at]


@pytest.mark.parametrize(
    ("then", "now", "wanted"), [("0s", "30m", {"InTime": 1111}), ("30m", "0s", {"InTime": 1011, "Late": 100})]
)
def test_each_event_counts_once_where_other_events_are_late_now(
    tmp_path: Path, then: str, now: str, wanted: dict[str, int]
) -> None:
    events = [Output("readings", b"x", msgspec.json.encode(Reading("x", at)), at) for at in VALUES]
    append(tmp_path, events, {"readings": 2})
    live_on(tmp_path, made(then))
    app = made(now)
    with pytest.raises(ReplayDivergedError, match="came out differently"):
        done(tmp_path, app, order="tape")
    report, snapshot = done(tmp_path, app)
    assert (
        f"the tape was written by version {then!r}, and this code is version {now!r}: in stages"
        in report.notes
    )
    assert {actor: one["total"] for (actor, _), one in fields(rebuilt(snapshot)).items()} == wanted
