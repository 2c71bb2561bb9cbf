"""No version takes over within a drain, where old code has fired some timers of a step, and other code would divide them otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from tailrace.core.engine import tape
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import HandlerError, SnapshotMismatchError
from tailrace.core.records import Output
from tailrace.history.reading import app_history
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Destination, Request, Source
from tailrace.lab.upgrade import driver, steps
from tailrace.lab.upgrade.driver import Upgrading, Wanted
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tests.lab.in_process import Here
from tests.lab.selling import version
from tests.lab.upgrade import alarms
from tests.lab.upgrade.stage import module_of, step_of
from tests.lab.upgrade.test_bad_input import serve, upgrade

OLD = "tests.lab.upgrade.alarms:app"
COUNT = 3 * TaskSettings().firing_budget
FIRST, LATER = alarms.Alarm("a", 1_000, COUNT), alarms.Alarm("a", 1_000_000, 0)
BROKEN = FIRST.at + COUNT - 500
"""The time of a timer that does not fire before the first commit of the drain."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wanted:
    """An upgrade of a service that has set many timers."""
    monkeypatch.setattr(driver, "Version", Here)
    monkeypatch.setattr(alarms, "FAILS", set[int]())
    monkeypatch.syspath_prepend(str(tmp_path))
    Here.tasks = []
    changes = ("WEIGHT = 1", "WEIGHT = 10"), ('version="1"', 'version="2"')
    new = version(tmp_path, f"alarms_of_{tmp_path.name}", *changes, of=str(alarms.__file__))
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        log.create_topic("alarms", TopicSettings(1))
    feed(tmp_path, FIRST)
    serve(OLD, tmp_path)
    return Wanted(old=OLD, new=new, log=str(tmp_path / "log"), snapshots=str(tmp_path / "snapshots"))


def feed(folder: Path, event: alarms.Alarm) -> None:
    with closing(EmbeddedLog(folder / "log")) as log:
        log.append_all([Output("alarms", event.key.encode(), msgspec.json.encode(event), event.at)])


def stop_within_drain(folder: Path) -> None:
    """All timers become due, and the service fails at one of them, after a commit."""
    feed(folder, LATER)
    alarms.FAILS.add(BROKEN)
    with pytest.raises(HandlerError, match="it does not ring"):
        serve(OLD, folder)
    alarms.FAILS.clear()
    with closing(EmbeddedLog(folder / "log")) as log:
        cut = AppHistory(alarms.app.plan(), log).committed(0).cut
    assert cut is not None
    assert tape.decode_cut(cut).within_drain
    assert 0 < tape.decode_cut(cut).totals.fired < COUNT


def check(folder: Path, new: str, *, old_fired: int) -> None:
    """Each timer has fired once: so many of them in the old version. The new one continues with a state of its own."""
    serve(module_of(new), folder)
    again = alarms.Alarm("a", LATER.at + 1_000, 1)
    feed(folder, again)
    feed(folder, alarms.Alarm("a", again.at + 1_000, 0))
    serve(module_of(new), folder)
    with closing(EmbeddedLog(folder / "log")) as log:
        found = [msgspec.json.decode(one.value or b"", type=alarms.Rung) for one in scan(log, "rung", 0)]
    times = [*range(FIRST.at + 1, FIRST.at + COUNT + 1), again.at + 1]
    assert [one.at for one in found] == times
    old = [*range(1, old_fired + 1)]
    assert [one.total for one in found] == old + [10 * one for one in range(old_fired + 1, COUNT + 2)]


def test_a_service_that_was_stopped_within_a_drain_is_refused_and_stays_as_it_is(
    asked: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_within_drain(tmp_path)
    monkeypatch.setattr(app_history, "_DRAIN_S", 0.2)
    said = r"the last commit of 'alarms' partition 0 fell between two timers.*run the version that ran once with --until-end"
    with pytest.raises(SnapshotMismatchError, match=said):
        upgrade(asked)
    assert step_of(asked.log, "alarms") == "begun"
    to = Destination(uri=str(tmp_path / "rebuilt"))
    request = Request(app=module_of(asked.new), source=Source(log=asked.log), to=to, order="stages")
    with pytest.raises(SnapshotMismatchError, match=said):
        rebuild(request, LocalEngine(1))
    serve(OLD, tmp_path)
    upgrade(asked)
    check(tmp_path, asked.new, old_fired=COUNT)


def test_an_upgrade_waits_for_the_end_of_a_drain(asked: Wanted, tmp_path: Path) -> None:
    stop_within_drain(tmp_path)

    class Continues(logging.Handler):
        """Lets the service work on when the upgrade says that it waits."""

        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for its next commits" in record.getMessage():
                said.append(record.getMessage())
                serve(OLD, tmp_path)

    said, handler = list[str](), Continues()
    logging.getLogger("tailrace.service").addHandler(handler)
    try:
        upgrade(asked)
    finally:
        logging.getLogger("tailrace.service").removeHandler(handler)
    assert len(said) == 1
    check(tmp_path, asked.new, old_fired=COUNT)


def test_a_version_that_was_fenced_within_a_drain_ends_it_before_the_new_one_takes_over(
    asked: Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_SMALL_S", 600.0)  # the second round is the last one before the fence
    came = list[str]()
    stop: dict[int, Callable[[Path], None]] = {2: stop_within_drain}

    def reached(step: str) -> None:
        came.append(step)
        if step == "verified":
            stop.pop(came.count(step), lambda _: None)(tmp_path)
        if step == "ready":
            serve(module_of(asked.new), tmp_path)

    with ExitStack() as stack:
        assert Upgrading(asked, stack).run(reached).done
    assert came[came.index("fenced") - 1] == "verified"
    assert not stop
    check(tmp_path, asked.new, old_fired=COUNT)
