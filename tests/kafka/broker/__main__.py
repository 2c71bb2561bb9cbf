"""Runs a command with a broker of its own, which ends with the command::

    python -m tests.kafka.broker COMMAND...

``{broker}`` in an argument becomes the broker's host and port, and the command finds it in TAILRACE_TEST_KAFKA, so that all tests
that it runs share this broker. TAILRACE_TEST_KAFKA=host:port names a broker to use instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.kafka.broker.artefacts import NoBrokerError
from tests.kafka.broker.cluster import Cluster


def main(command: list[str]) -> int:
    """Run the command. Returns its exit code."""
    given = os.environ.get("TAILRACE_TEST_KAFKA")
    if given:
        return run(command, given)
    with tempfile.TemporaryDirectory(prefix="tailrace-broker-") as folder, Cluster(Path(folder)) as cluster:
        return run(command, cluster.bootstrap)


def run(command: list[str], broker: str) -> int:
    """Run the command with the address of a broker."""
    return subprocess.run(
        [one.replace("{broker}", broker) for one in command],
        env={**os.environ, "TAILRACE_TEST_KAFKA": broker},
        check=False,
    ).returncode


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(1)  # which ends the command, too


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    try:
        sys.exit(main(sys.argv[1:]))
    except NoBrokerError as failure:
        sys.exit(str(failure))
