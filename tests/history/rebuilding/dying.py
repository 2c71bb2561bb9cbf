"""Drivers of a rebuild that die: ``python -m tests.history.rebuilding.dying REQUEST``, with numbers on stdin, line by line.

For each a process goes on with the rebuild that the file describes, and is killed at that line of what settles, keeps and
publishes. It answers "killed", or how many lines there were.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from tailrace.history.rebuilding import driver, output_files, work_folder
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Request
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import arrow, catalogue, manifest, places

_WATCHED = {one.__file__ for one in (driver, output_files, work_folder, catalogue, manifest, places)}


class Countdown:
    """Counts lines, and ends the process at one of them."""

    def __init__(self, point: int) -> None:
        self.lines = 0
        self._point = point

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in _WATCHED:
            return None
        self.lines += event == "line"
        if self.lines == self._point:
            os.kill(os.getpid(), signal.SIGKILL)
        return self


def main(path: Path) -> None:
    asked = msgspec.msgpack.decode(path.read_bytes(), type=Request)
    find_app(asked.app).plan()
    _ = (
        arrow.pa.schema,
        arrow.compute.equal,
        arrow.filesystems.FileType,
        arrow.parquet.ParquetWriter,
    )  # imported now
    for line in sys.stdin:
        child = os.fork()
        if not child:
            countdown = Countdown(int(line))
            sys.settrace(countdown)
            driver.rebuild(asked, LocalEngine(1))
            sys.settrace(None)
            sys.stdout.write(f"{countdown.lines}\n")
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.stdout.write("killed\n" if os.WTERMSIG(status) == signal.SIGKILL else f"status {status}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
