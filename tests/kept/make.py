"""Makes a kept file: ``python -m tests.kept.make NAME`` writes ``files/NAME.tar.xz``. A file that is there is never made again.

It has what lies on a disk after the app of ``tests.kept.app`` has lived: a log, state folders, snapshots of each kind, an archive,
and a log on which ``tailrace upgrade`` has put the second version in the place of the first.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tarfile
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tailrace.core import rows
from tailrace.core.declare import schema
from tailrace.core.engine import tape
from tailrace.history.rebuilding.engines import Where
from tailrace.lab.upgrade.driver import Upgrading, Wanted
from tailrace.log.archive import layout
from tailrace.log.embedded import EmbeddedLog, database
from tailrace.state import folder as state_folder
from tailrace.state import store_cut
from tailrace.state.snapshots import manifest
from tests.cli.commands import done
from tests.kept.app import drawn, outputs
from tests.runtime.processes import Running

FILES = Path(__file__).parent / "files"
APP = "tests.kept.app"
_ONE, _TWO = f"{APP}:ONE", f"{APP}:TWO"
FORMATS = {
    "log": database,
    "archive": layout,
    "tape": tape,
    "rows": rows,
    "schema": schema,
    "store cut": store_cut,
    "state folder": state_folder,
    "snapshot": manifest,
}
"""Modules with the numbers of stored formats."""
EVENTS = drawn(1, 0, 160)
FULL, MORE = 90, 130
"""How many events the snapshots stand behind; the service has handled ``MORE``, and all but the last are in the log."""


class Kept(msgspec.Struct):
    """What is known of a kept file: the numbers of its formats, and in which folder it was made, as paths are in it."""

    formats: dict[str, int]
    folder: str


def formats() -> dict[str, int]:
    """The numbers of today."""
    return {name: one.FORMAT for name, one in FORMATS.items()}


def append(log: Path, start: int, stop: int) -> None:
    """Give some of the events to the app."""
    with closing(EmbeddedLog(log)) as opened:
        opened.append_all(outputs(EVENTS[start:stop]))


def made(to: Path) -> None:
    """Write all of it into a folder."""
    log, uri = to / "log", to / "snapshots"
    run = ("run", _ONE, "--until-end", "--allow-dead-letters", "--log", log, "--state", to / "state")
    snapshots = ("--log", log, "--snapshots", uri)
    done("topics", "apply", "--app", _ONE, "--log", log)
    append(log, 0, FULL)
    done(*run)
    done("snapshot", "create", _ONE, "--name", "full", *snapshots)
    append(log, FULL, MORE)
    done(*run)
    done("snapshot", "create", _ONE, "--name", "more", "--incremental", *snapshots)
    done("snapshot", "migrate", _TWO, "full", "--snapshots", uri, "--name", "migrated")
    done("rebuild", _ONE, "--order", "tape", "--workers", 1, "--log", log, "--to", uri)
    done("archive", "--log", log, "--to", to / "archive")
    shutil.copytree(log, to / "upgraded")
    _upgrade(to)
    append(log, MORE, len(EVENTS))
    (to / "kept.json").write_bytes(msgspec.json.encode(Kept(formats(), str(to))))


def _upgrade(to: Path) -> None:
    log = to / "upgraded"
    wanted = Wanted(old=_ONE, new=_TWO, log=str(log), snapshots=str(to / "upgrading"), where=Where(workers=1))
    service = ("run", _TWO, "--log", log, "--state", to / "other", "--log-format", "json")
    with ExitStack() as stack:

        def reached(step: str) -> None:
            if step == "begun":  # before, it would begin with the state of the first version
                runs.append(stack.enter_context(Running(*service)))

        runs = list[Running]()
        assert Upgrading(wanted, stack).run(reached).done
        runs[0].signal(signal.SIGTERM)
        assert runs[0].ended() == 0, runs[0].complaint
    shutil.rmtree(to / "other")


def main(name: str) -> None:
    """Write a new file."""
    file = FILES / f"{name}.tar.xz"
    with TemporaryDirectory() as folder, tarfile.open(file, "x:xz") as tar:
        made(Path(folder) / "kept")
        tar.add(Path(folder) / "kept", arcname=".")


if __name__ == "__main__":
    main(*sys.argv[1:])
