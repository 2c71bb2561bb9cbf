"""Engines hand units of work to processes, here of this machine; Spark's engine is in ``tailrace.spark``."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from tailrace.core.errors import MissingExtraError
from tailrace.history.rebuilding.job import Unit, decode_unit
from tailrace.history.rebuilding.results import UnitResult, decode_result, encode_result
from tailrace.history.rebuilding.units import run_unit
from tailrace.processes.child_process import ChildProcess, Pipe, send_error, wait_for

OnProgress: TypeAlias = Callable[[], None]

_EVERY_S = 0.5
_IF_IT_IS_LOST = (
    "If memory is short, give it fewer --workers. Run the same command again: it resumes where it was."
)


class Where(msgspec.Struct, frozen=True):
    """The engine to use."""

    engine: Literal["local", "spark"] = "local"
    master: str | None = None
    """Of Spark. None: ``local[*]``, or that of ``spark-submit``."""
    workers: int | None = None
    """Of the local engine."""


class Engine(Protocol):
    """Runs units of work in some processes."""

    @property
    def name(self) -> str:
        """The name of the engine in reports."""
        ...

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """Run each unit with ``run_unit``, in any order and in parallel. Yields the results as they arrive.

        The engine calls ``on_progress`` from time to time, in the thread that iterates. A caller that stops
        iterating cancels the remaining units.
        Raises WorkerLostError: a process has ended, or cannot be started. Finished work is kept in the work folder.
        """
        ...

    def close(self) -> None:
        """End the processes that are kept for further units. The engine can be used again."""
        ...


class LocalEngine:
    """``processes`` processes of this machine (default: number of cores). A single one is this process.

    They are kept for the next units, as a rebuild in rounds runs few units at a time.
    """

    name = "local"

    def __init__(self, processes: int | None = None) -> None:
        self.processes = len(os.sched_getaffinity(0)) if processes is None else processes
        self._idle: list[ChildProcess] = []

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """See ``Engine.run``."""
        if self.processes == 1 or len(units) == 1:
            for unit in units:
                yield run_unit(unit)
                on_progress()
            return
        waiting = [unit.encode() for unit in reversed(units)]
        at_work: set[ChildProcess] = set()
        try:
            while waiting and len(at_work) < self.processes:
                child = self._idle.pop() if self._idle else _started()
                at_work.add(child)
                child.send(waiting.pop())
            while at_work:
                done: list[bytes] = []
                for child in wait_for(at_work, _EVERY_S):
                    done.append(child.receive())
                    if waiting:
                        child.send(waiting.pop())
                    else:
                        at_work.remove(child)
                        self._idle.append(child)
                yield from map(decode_result, done)
                on_progress()
        finally:  # the next attempt at its unit continues the work of a child that is closed
            for child in at_work:
                child.close()

    def close(self) -> None:
        """See ``Engine.close``."""
        while self._idle:
            self._idle.pop().leave()


def _started() -> ChildProcess:
    return ChildProcess("a process of the rebuild", _run_units, hint=_IF_IT_IS_LOST)


def _run_units(pipe: Pipe) -> None:
    """The main loop of a process: it runs units until the parent closes the pipe."""
    while True:
        try:
            unit: bytes = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(encode_result(run_unit(decode_unit(unit))))
        except Exception as error:  # noqa: BLE001  # the driver decides what to do about it
            error.add_note(f"In a process of the rebuild:\n{traceback.format_exc()}")
            send_error(pipe, error)


@contextmanager
def opened_engine(where: Where) -> Generator[Engine]:
    """An engine, which is closed at the end of the block. Raises MissingExtraError: Spark is not installed."""
    if where.engine == "local":
        with closing(LocalEngine(where.workers)) as local:
            yield local
        return
    try:
        engines: Any = importlib.import_module("tailrace.spark.engine")
        sessions: Any = importlib.import_module("tailrace.spark.session")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the engine 'spark' needs {error.name}", hint="pip install 'tailrace[spark]'"
        ) from error
    # Below spark-submit the session is the one that it was asked for.
    of_session = "" if "PYSPARK_GATEWAY_PORT" in os.environ else "local[*,4]"
    with sessions.running_context(where.master or of_session, config=engines.DRIVER) as context:
        yield engines.SparkEngine(context)
