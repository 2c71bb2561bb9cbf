"""Engines: who hands units of work to processes. Here those of this machine; Spark's is in ``tailrace.spark``."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeAlias

from tailrace.core.errors import WorkerLostError
from tailrace.history.rebuilding.job import Unit, UnitResult, decode_result, decode_unit, encode_result
from tailrace.history.rebuilding.units import run_unit
from tailrace.processes.hash_seeds import started_with
from tailrace.processes.signals import held_back

OnProgress: TypeAlias = Callable[[], None]

_EVERY_S = 0.5


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
        context = multiprocessing.get_context("spawn")
        with started_with(self.hash_seed):
            count = min(self.processes, len(units))
            pool = ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent)
            try:
                with held_back():
                    waiting = {pool.submit(_run, unit.encode()) for unit in units}
                while waiting:
                    done, waiting = wait(waiting, _EVERY_S, FIRST_COMPLETED)
                    for one in done:
                        yield _result(one)
                    on_progress()
            except BaseException:
                for process in list((pool._processes or {}).values()):
                    process.kill()  # what it was doing is gone on with by whoever runs the unit next
                raise
            finally:
                pool.shutdown(cancel_futures=True)


def _run(unit: bytes) -> bytes:
    return encode_result(run_unit(decode_unit(unit)))


def _result(one: Future[bytes]) -> UnitResult:
    try:
        return decode_result(one.result())
    except BrokenProcessPool as error:
        raise WorkerLostError(
            "a process of the rebuild was ended from outside",
            hint="If memory is short, give it fewer --workers. Run the same command again: it goes on where it was.",
        ) from error


def _end_with_parent() -> None:
    """A process that nobody waits for ends at once: it would hold what the next driver needs."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
