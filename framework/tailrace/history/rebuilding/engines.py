"""Engines: who hands units of work to processes. Here those of this machine; Spark's is in ``tailrace.spark``."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeAlias

from tailrace.history.rebuilding.job import Unit, UnitResult, decode_result, decode_unit, encode_result
from tailrace.history.rebuilding.units import run_unit
from tailrace.processes.child_process import ChildProcess, Conduct, Pipe, send_error, wait_for

OnProgress: TypeAlias = Callable[[], None]

_EVERY_S = 0.5
_IF_IT_IS_LOST = (
    "If memory is short, give it fewer --workers. Run the same command again: it goes on where it was."
)


class Engine(Protocol):
    """Has units of work run, in whatever processes."""

    @property
    def name(self) -> str:
        """For the report."""
        ...

    @property
    def workers(self) -> int:
        """How many units run at once."""
        ...

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """Run each of the units with ``run_unit``, in any order and at once; give their results as they come.

        ``on_progress`` is to be called now and then meanwhile, from the thread that iterates. Whoever stops iterating wants
        no more of it.

        Raises:
            WorkerLostError: A process has ended, or cannot be had. What was done is kept in the work folder.
        """
        ...


class LocalEngine:
    """Processes of this machine: ``processes`` of them, or as many as it has cores. One is this process itself.

    ``hash_seed`` is what Python's string hashes begin with there; else it is chance, as for any process.
    """

    name = "local"

    def __init__(self, processes: int | None = None, hash_seed: int | None = None) -> None:
        self.processes = len(os.sched_getaffinity(0)) if processes is None else processes
        self.hash_seed = hash_seed

    @property
    def workers(self) -> int:
        """See ``Engine.workers``."""
        return self.processes

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """See ``Engine.run``."""
        if self.hash_seed is None and (self.processes == 1 or len(units) == 1):
            for unit in units:
                yield run_unit(unit)
                on_progress()
            return
        waiting = [unit.encode() for unit in reversed(units)]
        with ExitStack() as closing_all:
            at_work: set[ChildProcess] = set()
            while waiting and len(at_work) < self.processes:
                child = ChildProcess(
                    "a process of the rebuild",
                    _run_units,
                    conduct=Conduct(hash_seed=self.hash_seed),
                    hint=_IF_IT_IS_LOST,
                )
                closing_all.callback(
                    child.close
                )  # what it was doing is gone on with by whoever runs the unit next
                child.send(waiting.pop())
                at_work.add(child)
            while at_work:
                done: list[bytes] = []
                for child in wait_for(at_work, _EVERY_S):
                    done.append(child.receive())
                    if waiting:
                        child.send(waiting.pop())
                    else:
                        at_work.remove(child)
                        child.leave()
                yield from map(decode_result, done)
                on_progress()


def _run_units(pipe: Pipe) -> None:
    """The life of a process: units are run until the parent closes the pipe."""
    while True:
        try:
            unit: bytes = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(encode_result(run_unit(decode_unit(unit))))
        except Exception as error:  # noqa: BLE001  # what it is, the driver decides
            error.add_note(f"In a process of the rebuild:\n{traceback.format_exc()}")
            send_error(pipe, error)
