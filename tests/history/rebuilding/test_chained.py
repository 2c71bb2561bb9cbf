"""Chained apps rebuilt together: the second gets what corrected code of the first emits, and both services continue."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.engine.replay import Limits
from tailrace.core.errors import UsageError
from tailrace.core.records import Output
from tailrace.history.rebuilding import driver
from tailrace.history.rebuilding.chained import rebuild_chain
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state.snapshots import Snapshots
from tests.history.rebuilding import lived, payments
from tests.history.rebuilding.lived import request
from tests.history.rebuilding.payments import Window, oracle
from tests.history.rebuilding.test_corrected_sends import APP, CORRECTED, emitted

LEDGER = "tests.history.rebuilding.payments:ledger"
EVENTS = payments.payments(150)


def chain(folder: Path, *apps: str, **options: Any) -> list[str]:
    """The snapshots of a chain."""
    asked = request(folder, apps[0], outputs="topic:-new", **options)
    run = partial(rebuild, engine=LocalEngine(1))
    return [one.snapshot for one in rebuild_chain(asked, apps, run)]


@pytest.mark.parametrize("wrong", ["", "topic", "amount"])
def test_a_chain_is_corrected_and_continues(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payments, "WRONG", wrong)
    lived.append(tmp_path, payments.outputs(EVENTS), {"paid": 2})
    for app in (APP, LEDGER):
        lived.live_on(tmp_path, app)
    recorded = emitted(tmp_path, "days")
    wanted = oracle(EVENTS)
    assert (recorded == wanted.days) is (wrong != "topic")
    monkeypatch.setattr(payments, "WRONG", "")
    first, second = chain(tmp_path, CORRECTED, LEDGER)
    assert emitted(tmp_path, "windows-new") == wanted.windows
    assert emitted(tmp_path, "days-new") == wanted.days
    behind = (EVENTS[-1].at // payments.DAY_MS + 1) * payments.DAY_MS
    more = payments.payments(80, seed=2, first_ms=behind)
    lived.append(tmp_path, payments.outputs(more), {})
    for app, snapshot in ((CORRECTED, first), (LEDGER, second)):
        lived.live_on(tmp_path, app, replace=f"{tmp_path / 'snapshots'}#{snapshot}")
    # What the wrong code had emitted stays; all that follows is right, each day once.
    assert emitted(tmp_path, "days") == recorded | oracle(more).days


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (driver, "publish_outputs"),
        (driver, "as_declared"),
        (Snapshots, "publish"),
        (WorkFolder, "keep_results"),
        (WorkFolder, "begin"),
    ],
)
def test_a_chain_that_is_killed_in_its_second_app_is_resumed(
    tmp_path: Path, split: int, place: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, payments.outputs(EVENTS), {"paid": 2})
    for app in (APP, LEDGER):
        lived.live_on(tmp_path, app)
    real, calls = getattr(place, name), list[object]()

    def die(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        if len(calls) == (1 if name == "as_declared" else 2):
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(place, name, die)
    with pytest.raises(KeyboardInterrupt):
        chain(tmp_path, CORRECTED, LEDGER, split=split)
    monkeypatch.undo()
    first, second = chain(tmp_path, CORRECTED, LEDGER, split=split)
    wanted = oracle(EVENTS)
    assert emitted(tmp_path, "windows-new") == wanted.windows
    assert emitted(tmp_path, "days-new") == wanted.days
    made = {
        one.id for app in ("payments", "ledger") for one in Snapshots(str(tmp_path / "snapshots"), app).list()
    }
    assert made == {first, second}, "no app was rebuilt twice"
    assert not list((tmp_path / "snapshots").glob("*/_work/*"))


def test_apps_in_another_order_are_refused(tmp_path: Path) -> None:
    lived.append(tmp_path, [], {"paid": 2})
    with pytest.raises(UsageError, match="'payments' reads no topic that the apps before it write"):
        chain(tmp_path, LEDGER, APP)


def test_records_that_no_app_of_the_chain_has_written_are_not_left_out_in_silence(tmp_path: Path) -> None:
    foreign = Window("region-0", 100, 5)
    lived.append(
        tmp_path,
        [*payments.outputs(EVENTS), Output("windows", b"region-0", msgspec.json.encode(foreign), 100)],
        {"paid": 2, "windows": 2},
    )
    with pytest.raises(UsageError, match="'windows' holds records that no app of the chain has written"):
        chain(tmp_path, APP, LEDGER)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"keys": ("a",)}, "rebuilt whole"), ({"until": Limits(watermark_ms=5)}, "rebuilt whole")],
)
def test_a_part_of_a_chain_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    lived.append(tmp_path, payments.outputs(EVENTS), {"paid": 2})
    with pytest.raises(UsageError, match=said):
        chain(tmp_path, APP, LEDGER, **options)


def test_an_app_whose_tape_begins_with_a_snapshot_is_not_chained_along_it(tmp_path: Path) -> None:
    """Its outputs from before the snapshot would be missing in the state of the next app."""
    lived.append(tmp_path, payments.outputs(EVENTS), {"paid": 2})
    lived.live_on(tmp_path, APP)
    _, base = lived.done(tmp_path, APP, order="canonical")  # a history of its own
    lived.live_on(tmp_path, APP, replace=f"{tmp_path / 'snapshots'}#{base.manifest.id}")
    behind = (EVENTS[-1].at // payments.DAY_MS + 1) * payments.DAY_MS
    more = payments.payments(80, seed=2, first_ms=behind)
    lived.append(tmp_path, payments.outputs(more), {})
    for app in (APP, LEDGER):
        lived.live_on(tmp_path, app)
    with pytest.raises(
        UsageError, match=f"'payments' partition 0 began with the snapshot {base.manifest.id}"
    ) as refused:
        chain(tmp_path, APP, LEDGER)
    assert "--order canonical" in str(refused.value)
    chain(tmp_path, APP, LEDGER, order="canonical")
    assert emitted(tmp_path, "windows-new") == emitted(tmp_path, "windows")
    assert emitted(tmp_path, "days-new") == emitted(tmp_path, "days")
