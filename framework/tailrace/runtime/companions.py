"""What goes along with the worker of a service: reports, cleaning, snapshots, standbys, the link to a parent process.

A companion sees the life of its process (``host``) at four points. It works in the worker's thread, so it must be brief. Its failures::

                        it is not essential                        it is essential
    begin               logged; it is left out                     the service ends
    assigned, look      logged, once until it succeeds again       the service ends
    close               logged                                     raised when the worker has left without an error
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tailrace.core.errors import TailraceError

if TYPE_CHECKING:
    from tailrace.runtime.host import Host

_log = logging.getLogger("tailrace.companions")


class Companion:
    """The base of all."""

    name: ClassVar[str] = "a companion"
    """For log lines."""
    essential: ClassVar[bool] = False
    """Whether the service ends if it fails."""
    host: Host | None = None
    """Where it has begun."""

    def begin(self, host: Host, /) -> None:
        """Called once, before the process has tasks."""
        self.host = host

    @property
    def is_here(self) -> bool:
        """Whether this process does what a service does once: it owns task 0."""
        return self.host is None or 0 in self.host.tasks.owned

    def assigned(self, numbers: Collection[int], /) -> None:
        """Called with new tasks of this process, before their state folders are opened."""

    def look(self) -> None:
        """Called after every turn."""

    def close(self) -> None:
        """Called once the worker has left; also if ``begin`` has failed."""


class Companions:
    """The companions of a process, called in their order. See the head of this file."""

    def __init__(self, companions: Sequence[Companion], app: str) -> None:
        self._all = [*companions]
        self._active: list[Companion] = []
        self._app = app
        self._failing: set[tuple[Companion, str]] = set()
        self._failure: Exception | None = None
        """Of an essential one in ``close``."""

    def begin(self, host: Host) -> None:
        """Begin all."""
        for one in self._all:
            if self._guarded(one, "begin", partial(one.begin, host)):
                self._active.append(one)

    def assigned(self, numbers: Collection[int]) -> None:
        """Pass new tasks on."""
        for one in self._active:
            self._guarded(one, "assigned", partial(one.assigned, numbers))

    def look(self) -> None:
        """Let each look."""
        for one in self._active:
            self._guarded(one, "look", one.look)

    def close(self) -> None:
        """Close all. ``raise_failure`` raises what an essential one has raised."""
        self._active = []
        for one in self._all:
            try:
                self._guarded(one, "close", one.close)
            except Exception as error:  # noqa: BLE001  # raised by ``raise_failure``
                self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise the first error of an essential companion in ``close``."""
        if self._failure is not None:
            raise self._failure

    def _guarded(self, one: Companion, doing: str, call: Callable[[], None]) -> bool:
        """Call a companion. Returns whether it has succeeded.

        Raises:
            Exception: An essential one has failed.
        """
        try:
            call()
        except Exception as error:
            if one.essential:
                raise
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
