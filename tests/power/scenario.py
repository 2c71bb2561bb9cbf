"""The recordings that crash states are built from: a service, its operator, and all that they write."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from tests.power.disk import Recorded
from tests.power.recording import ROOT, record


def recorded(folder: Path, policy: str) -> Recorded:
    """Record a service and its operator under a policy of the log, in an empty folder."""
    return Recorded(record(folder, lambda environment: run_processes(folder, policy, environment)))


def run_processes(
    folder: Path, policy: str, environment: Mapping[str, str], cut: Callable[[], None] | None = None
) -> None:
    """Run both to their end; or, with ``cut``, until that returns: then they are killed."""
    with (
        _process("operator", folder, policy, environment) as operator,
        _service(operator, folder, policy, environment) as service,
    ):
        if cut is None:
            _accompany(operator, service)
            assert (operator.wait(), service.wait()) == (0, 0)
            return
        company = Thread(target=_accompany_until_the_cut, args=(operator, service))
        company.start()
        try:
            cut()
        finally:
            operator.kill()
            service.kill()
            company.join()


def _accompany(operator: subprocess.Popen[str], service: subprocess.Popen[str]) -> None:
    """Stop the service as often as the operator asks for it, and tell it when that is done."""
    assert operator.stdout is not None
    assert operator.stdin is not None
    assert service.stdout is not None
    for line in operator.stdout:
        assert line == "stop\n"
        service.send_signal(signal.SIGTERM)
        assert service.stdout.readline() == "stopped\n"
        operator.stdin.write("stopped\n")
        operator.stdin.flush()


def _accompany_until_the_cut(operator: subprocess.Popen[str], service: subprocess.Popen[str]) -> None:
    with suppress(AssertionError, OSError):
        _accompany(operator, service)


@contextmanager
def _service(
    operator: subprocess.Popen[str], folder: Path, policy: str, environment: Mapping[str, str]
) -> Generator[subprocess.Popen[str]]:
    """The service, started when the operator has created the log."""
    assert operator.stdout is not None
    assert operator.stdout.readline() == "ready\n"
    with _process("service", folder, policy, environment) as service:
        yield service


@contextmanager
def _process(
    role: str, folder: Path, policy: str, environment: Mapping[str, str]
) -> Generator[subprocess.Popen[str]]:
    """A recorded process, ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.power.recorded", role, str(folder), policy],
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass
