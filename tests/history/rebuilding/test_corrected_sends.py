"""What corrected code sends to its own app counts in a rebuild, and not what was recorded when the code was
wrong.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import ReplayDivergedError, SendsDifferError
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshot
from tests.history.rebuilding import lived, payments
from tests.history.rebuilding.lived import done, live, rebuilt
from tests.history.rebuilding.payments import Expected, Paid, Window, oracle
from tests.history.rebuilding.payments_read import outputs_of, stored

APP = "tests.history.rebuilding.payments:app"
CORRECTED = "tests.history.rebuilding.payments:corrected"
EVENTS = payments.payments(150)


def emitted(folder: Path, topic: str = "windows") -> dict[tuple[str, int], int]:
    """What the log has of the windows, or days: each once."""
    found: dict[tuple[str, int], int] = {}
    for record in lived.read(folder, topic):
        window = msgspec.json.decode(record.value or b"", type=Window)  # days have the same fields
        assert (window.region, window.end) not in found, "twice"
        found[window.region, window.end] = window.amount
    return found


def assert_right(folder: Path, snapshot: Snapshot, wanted: Expected) -> None:
    assert stored(snapshot) == (wanted.accounts, wanted.regions)
    made = outputs_of(folder, snapshot)
    assert {place: wanted.windows[place] for place in made} == made
    last = max(one.at for one in EVENTS)
    # The last windows wait for a watermark that has not come yet.
    assert all(end >= last - payments.MINUTE_MS for _, end in wanted.windows.keys() - made.keys())


def served(folder: Path, events: list[Paid] = EVENTS) -> None:
    lived.append(folder, payments.outputs(events), {"paid": 2})
    lived.live_on(folder, APP)


@pytest.mark.parametrize("wrong", ["amount", "none", "topic"])
def test_what_corrected_code_sends_is_what_its_receivers_get(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAYMENTS_WRONG", wrong)
    check_corrected(tmp_path)


def check_corrected(folder: Path) -> None:
    """Let the service run the wrong code, and rebuild with the corrected one: refused along the tape, right
    in canonical order.
    """
    served(folder)
    os.environ.pop("PAYMENTS_WRONG", None)
    place = f"parquet:{folder / 'outputs'}"
    with pytest.raises(ReplayDivergedError, match="is not what is recorded") as caught:
        done(folder, CORRECTED, outputs=place)
    assert "--order canonical" in str(caught.value.hint)
    assert not list((folder / "snapshots" / "payments").glob("_work/*"))
    report, snapshot = done(folder, CORRECTED, order="canonical", outputs=place)
    assert_right(folder, snapshot, oracle(EVENTS))
    assert any("comes from this code" in note for note in report.notes)
    made = list((folder / "outputs" / "payments").iterdir())
    assert len(made) == 1, "outputs of the first attempt are left"


def test_along_the_tape_it_is_refused_with_the_place_where_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAYMENTS_WRONG", "amount")
    served(tmp_path)
    monkeypatch.delenv("PAYMENTS_WRONG")
    with pytest.raises(
        ReplayDivergedError, match=r"sends to 'payments.inbox' partition \d is not what is recorded"
    ):
        done(tmp_path, APP)


@pytest.mark.parametrize(("then", "now"), [("amount", ""), ("", "none"), ("none", ""), ("topic", "")])
def test_it_stops_in_the_commit_of_the_first_record_that_differs_and_shows_both(
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
    with pytest.raises(SendsDifferError) as caught:
        done(tmp_path, CORRECTED)
    # One partition at most has come to its end: the first one if nothing of its differs.
    asked = sum(1 + (one.amount >= payments.LARGE) for one in EVENTS)
    assert 0 < len(handled) < asked * 5 // 6
    sent, sends = re.findall(r"(nothing more|key .*?, value .*?)(?:, and now|$)", said(caught.value))
    message = r"value Region Share {'amount': (\d+)}"
    if then == "amount":
        (before,), (after,) = re.findall(message, sent), re.findall(message, sends)
        assert int(before) == 2 * int(after)
    elif then == "topic":
        assert '"amount":1}' in sent
        assert '"amount":1}' not in sends
    else:
        assert (sends if now else sent) == "nothing more"
        assert re.search(message, sent if now else sends)


def said(error: SendsDifferError) -> str:
    _, _, both = error.what.partition("It sent ")
    return both.replace("and now sends ", "and now ", 1)


def test_the_same_sends_are_read_as_they_were_recorded_along_the_tape(tmp_path: Path) -> None:
    served(tmp_path)
    report, snapshot = done(tmp_path, APP)
    assert report.notes == []
    assert rebuilt(snapshot) == live(tmp_path, find_app(APP).plan())


def test_an_app_that_has_not_run_yet_gets_its_messages_and_own_topics(tmp_path: Path) -> None:
    lived.append(tmp_path, payments.outputs(EVENTS), {"paid": 2})
    _, snapshot = done(tmp_path, APP, outputs=f"parquet:{tmp_path / 'outputs'}")
    assert_right(tmp_path, snapshot, oracle(EVENTS))


@pytest.mark.parametrize("wrong", ["amount", "none"])
def test_a_service_continues_from_the_corrected_state(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAYMENTS_WRONG", wrong)
    served(tmp_path)
    monkeypatch.delenv("PAYMENTS_WRONG")
    _, snapshot = done(tmp_path, CORRECTED, order="canonical")
    # The end of a bounded run has ended the last window: what follows begins behind it.
    behind = (EVENTS[-1].at // payments.MINUTE_MS + 1) * payments.MINUTE_MS
    more = payments.payments(80, seed=2, first_ms=behind)
    lived.append(tmp_path, payments.outputs(more), {})
    lived.live_on(tmp_path, CORRECTED, replace=f"{tmp_path / 'snapshots'}#{snapshot.manifest.id}")
    _, again = done(tmp_path, CORRECTED)
    wanted = oracle(EVENTS + more)
    assert stored(again) == (wanted.accounts, wanted.regions)
    assert emitted(tmp_path) == wanted.windows
