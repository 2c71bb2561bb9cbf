"""The recordings that crash states are built from: a service, its operator, and all that they write."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.power.disk import Recorded
from tests.power.recording import ROOT, record


def recorded(folder: Path, policy: str) -> Recorded:
    """Record a service and its operator under a policy of the log, in an empty folder."""

    def run(environment: Mapping[str, str]) -> None:
        with _process("operator", folder, policy, environment) as operator:
            assert operator.stdout is not None
            assert operator.stdin is not None
            assert operator.stdout.readline() == "ready\n"
            with _process("service", folder, policy, environment) as service:
                assert service.stdout is not None
                for line in operator.stdout:
                    assert line == "stop\n"
                    service.send_signal(signal.SIGTERM)
                    assert service.stdout.readline() == "stopped\n"
                    operator.stdin.write("stopped\n")
                    operator.stdin.flush()
                assert operator.wait() == 0
            assert service.returncode == 0

    return Recorded(record(folder, run))


class _process:  # noqa: N801  # used as a function
    """A recorded process, ended with the block."""

    def __init__(self, role: str, folder: Path, policy: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.power.recorded", role, str(folder), policy],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> subprocess.Popen[str]:
        return self._process

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass
