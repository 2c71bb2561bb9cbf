"""``python -m tailrace.faust.child``: the command line, for as long as standard input is open. See ``service``."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv[0] = "tailrace"
    runpy.run_module("tailrace", run_name="__main__")
