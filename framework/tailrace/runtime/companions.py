"""What goes along with the worker of a service: reports, cleaning, snapshots, standbys, the link to a parent process.

A companion sees the life of its process (``host``) at five points. It works in the worker's thread, so it must be brief. Its failures::

                        it is not essential                        it is essential
    begin               logged; it is left out                     the service ends
    assigned, look      logged, once until it succeeds again       the service ends
    committed           the same                                   the service ends at the next ``look``
    close               logged                                     raised when the worker has left without an error

A failure takes no commit with it: ``committed`` is called when the commit is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tailrace.core.engine.task import CommitBatch
from tailrace.core.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.runtime.host import Host

_log = logging.getLogger("tailrace.companions")


class Companion:
    """The base of all; its methods do nothing."""

    name: ClassVar[str] = "a companion"
    """For log lines."""
    essential: ClassVar[bool] = False
    """Whether the service ends if it fails."""
    host: Host | None = None
    """Where it has begun; set before ``begin`` is called."""

    def begin(self) -> None:
        """Called once, before the process has tasks."""

    @property
    def is_here(self) -> bool:
        """Whether what a service does once, in one of its processes, is done in this one: the owner of task 0 does it."""
        return self.host is None or 0 in self.host.tasks.owned

    def assigned(self, numbers: Collection[int], /) -> None:
        """Called with new tasks of this process, before their state folders are opened."""

    def look(self) -> None:
        """Called after every turn."""

    def committed(self, number: int, batch: CommitBatch, /) -> None:
        """Called once for each durable commit of a task, in their order. ``commits`` says when one in doubt is reported."""

    def close(self) -> None:
        """Called at the end, once the worker has left; also if ``begin`` has failed."""


class Companions:
    """The companions of a process, called in their order. See the head of this file."""

    def __init__(self, companions: Sequence[Companion], app: str) -> None:
        self._all = [*companions]
        self._active: list[Companion] = []
        self._app = app
        self._failing: set[tuple[Companion, str]] = set()
        self._failure: Exception | None = None
        """Of an essential one, where nothing may be raised."""

    def begin(self, host: Host) -> None:
        """Begin all."""
        for one in self._all:
            one.host = host
            if self._guarded(one, "begin", one.begin):
                self._active.append(one)

    def assigned(self, numbers: Collection[int]) -> None:
        """Pass new tasks on."""
        for one in self._active:
            self._guarded(one, "assigned", partial(one.assigned, numbers))

    def look(self) -> None:
        """Let each look."""
        self.raise_failure()
        for one in self._active:
            self._guarded(one, "look", one.look)

    @property
    def on_committed(self) -> Callable[[int, CommitBatch], None] | None:
        """Passes a commit on to the companions that want it. None: none does."""
        wanting = [one for one in self._all if type(one).committed is not Companion.committed]
        if not wanting:
            return None

        def committed(number: int, batch: CommitBatch) -> None:
            for one in wanting:
                if one in self._active:
                    self._guarded(one, "committed", partial(one.committed, number, batch), later=True)

        return committed

    def close(self) -> None:
        """Close all. ``raise_failure`` raises what an essential one has raised."""
        self._active = []
        for one in self._all:
            self._guarded(one, "close", one.close, later=True)

    def raise_failure(self) -> None:
        """Raise the first error of an essential companion that could not be raised at once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _guarded(self, one: Companion, doing: str, call: Callable[[], None], *, later: bool = False) -> bool:
        """Call a companion. Returns whether it has succeeded. With ``later``, no error is raised here."""
        try:
            call()
        except Exception as error:
            if one.essential and not later:
                raise
            if one.essential:
                self._failure = self._failure or error
            if (one, doing) not in self._failing:
                self._failing.add((one, doing))
                _log.warning(
                    "%s has failed in %s: %s",
                    one.name,
                    doing,
                    error if isinstance(error, TailraceError) else repr(error),
                    extra={"app": self._app},
                )
            return False
        if self._failing:
            self._failing.discard((one, doing))
        return True
