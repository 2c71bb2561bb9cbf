"""``tailrace upgrade``: nothing is lost or doubled, wherever the command is killed, and every version goes by the whole history."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tailrace.lab.upgrade.driver import Wanted
from tests.lab.upgrade.stage import (
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
