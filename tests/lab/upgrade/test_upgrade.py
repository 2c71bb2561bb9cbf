"""``tailrace upgrade``: nothing is lost or doubled, wherever the command is killed, and every version goes by the whole history."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tailrace.lab.upgrade.driver import Wanted
from tests.lab.upgrade import telling
from tests.lab.upgrade.stage import (
    BUG,
    OLD,
    STEPS,
    Producer,
    await_outputs,
    check,
    command,
    corrected,
    service,
    step_of,
)


def wanted_in(folder: Path, new: str, *, rollback: bool) -> Wanted:
    return Wanted(
        old=OLD,
        new=new,
        log=str(folder / "log"),
        snapshots=str(folder / "snapshots"),
        rollback=rollback,
        workers=1,
    )


@pytest.mark.long
@pytest.mark.parametrize("kills", [[], STEPS[:-1]], ids=["whole", "killed after every step"])
def test_an_upgrade_and_its_rollback_under_production(tmp_path: Path, kills: list[str]) -> None:
    log, new = tmp_path / "log", corrected(tmp_path)
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(log))
        runs = stack.enter_context(service(OLD, log, tmp_path))
        runs.wait_for("a partition runs", times=2)
        for next_app, back in ((new, False), (OLD, True)):
            asked = wanted_in(tmp_path, new, rollback=back)
            command(asked, killed_after="begun")
            waits = stack.enter_context(service(next_app, log, tmp_path))
            for step in kills[1:]:
                command(asked, killed_after=step)
            report = command(asked)
            assert report["done"]
            assert kills or report["rows"] > 0
            assert runs.ended() == 1
            assert "is being upgraded" in runs.complaint or "has replaced" in runs.complaint
            assert command(asked)["done"] is False
            late = stack.enter_context(service(OLD if next_app == new else new, log, tmp_path))
            assert late.ended() == 1
            assert "has replaced" in late.complaint
            await_outputs(log, len(producer.clicks))
            runs = waits
        producer.stop()
        runs.signal(signal.SIGTERM)
        assert runs.ended() == 0
        with service(OLD, log, tmp_path, "--end-of-input") as last:
            assert last.ended() == 0, last.complaint
    check(log, producer.clicks, "ono")
    assert step_of(log) == "done"


@pytest.mark.long
def test_changed_messages_and_a_second_upgrade(tmp_path: Path) -> None:
    """In canonical order: what was under way is handled by the old version. Version 3 is again as version 1."""
    log, old = tmp_path / "log", "tests.lab.upgrade.telling:app"
    versions = [
        old,
        corrected(tmp_path, of=telling),
        corrected(tmp_path, ("if True:", BUG), of=telling, number=3),
    ]
    with ExitStack() as stack:
        producer = stack.enter_context(Producer(log))
        runs = stack.enter_context(service(old, log, tmp_path))
        runs.wait_for("a partition runs", times=2)
        for before, after in pairwise(versions):
            asked = msgspec.structs.replace(wanted_in(tmp_path, after, rollback=False), old=before)
            command(asked, killed_after="begun")
            waits = stack.enter_context(service(after, log, tmp_path))
            assert command(asked)["order"] == "canonical"
            assert runs.ended() == 1
            await_outputs(log, len(producer.clicks))
            runs = waits
        producer.stop()
        runs.signal(signal.SIGTERM)
        assert runs.ended() == 0
        with service(versions[-1], log, tmp_path, "--end-of-input") as last:
            assert last.ended() == 0, last.complaint
    check(log, producer.clicks, "ono")
