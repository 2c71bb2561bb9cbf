"""A child is deaf to Ctrl-C, ends with its parent, says what it failed with, and leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from typing import Any

import pytest

from tailrace.core.errors import OffsetGoneError, TailraceError, WorkerLostError
from tailrace.processes.child_process import ChildProcess, Pipe, wait_for
from tests.runtime.processes import ROOT, is_alive, wait_until


def echoing(pipe: Pipe) -> None:
    """Answer until the parent closes the pipe."""
    while True:
        try:
            pipe.send(pipe.recv())
        except EOFError:
            return


def failing(_pipe: Pipe, error: str) -> None:
    if error == "exit":
        os._exit(7)
    if error == "bug":
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  # where the traceback goes
        raise ValueError(error)
    raise OffsetGoneError(error, topic="ticks", partition=0, offset=3)


def failing_with_a_local(_pipe: Pipe) -> None:
    class Key:
        pass

    error = OffsetGoneError("it is gone")
    error.key = Key()  # what no other process can have
    raise error


@contextmanager
def started(life: Any, *arguments: Any, **options: Any) -> Generator[ChildProcess]:
    child = ChildProcess("a process of the test", life, *arguments, **options)
    try:
        yield child
    finally:
        child.close()
    assert not is_alive(child.pid)


def test_it_answers_and_leaves_when_its_pipe_is_closed() -> None:
    with started(echoing) as child:
        child.send("hello")
        assert wait_for([child], 60) == [child]
        assert child.receive() == "hello"
        assert child.is_alive
        child.leave()
        assert (child.exit_code, child.how_it_ended) == (0, "left by itself")


def test_it_raises_in_its_parent_what_it_failed_with() -> None:
    with started(failing, "gone") as child:
        with pytest.raises(OffsetGoneError, match="gone") as caught:
            child.receive()
        assert (caught.value.topic, caught.value.offset) == ("ticks", 3)
    with started(failing_with_a_local) as child, pytest.raises(TailraceError, match="it is gone"):
        child.receive()


@pytest.mark.parametrize(("error", "code"), [("exit", 7), ("bug", 1)])
def test_one_that_dies_is_named_with_its_exit_code(error: str, code: int) -> None:
    with started(failing, error, hint="Try less.") as child:
        with pytest.raises(WorkerLostError) as caught:
            child.receive()
        assert str(caught.value) == f"a process of the test died with exit code {code}. Try less."


def test_one_that_is_killed_is_named_with_the_signal() -> None:
    with started(echoing) as child:
        child.kill()
        with pytest.raises(WorkerLostError, match="a process of the test was ended by SIGKILL"):
            child.receive()
        child.send("nobody hears this")
        assert not child.is_alive


def test_it_does_not_hear_ctrl_c_from_its_first_instruction_on() -> None:
    with started(echoing) as child:
        os.kill(child.pid, signal.SIGINT)
        child.send("still here")
        assert child.receive() == "still here"


def test_ctrl_c_while_it_is_being_started_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = SpawnProcess.start, list[SpawnProcess]()

    def interrupted(process: SpawnProcess) -> None:
        start(process)
        begun.append(process)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ChildProcess("a process of the test", echoing)
    assert len(begun) == 1
    assert begun[0] not in multiprocessing.active_children()


PARENT = """
from tailrace.processes.child_process import ChildProcess
from tests.processes.test_child_process import echoing

child = ChildProcess("a process of the test", echoing)
child.send("hello")
print(child.receive(), child.pid, flush=True)
input()
"""


def test_it_ends_with_a_parent_that_is_killed() -> None:
    path = os.pathsep.join([str(ROOT / "framework"), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        hello, pid = parent.stdout.readline().split()
        assert hello == "hello"
        parent.kill()
        parent.wait(60)
        wait_until(lambda: not is_alive(int(pid)), "the child has ended")


def test_where_the_system_gives_no_process_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: SpawnProcess) -> None:
        raise BlockingIOError("no room")

    monkeypatch.setattr(SpawnProcess, "start", refuse)
    with pytest.raises(WorkerLostError, match=r"a process of the test cannot be started: no room. Try less."):
        ChildProcess("a process of the test", echoing, hint="Try less.")
