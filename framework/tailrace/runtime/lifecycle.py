"""The life of a partition, as a table.

Rule 1: everything that decides which state a partition is in lives here. The code that does the work announces what
happened (an ``Event``); it never sets a state.

Rule 2: an event that the table does not have for the present state is a mistake of the program, and raises. Nothing is
ignored, nothing is done twice.

Theory. A partition is *assigned* to a worker, takes its transactional id over and is *restored*; then it *runs*, and
*commits* now and then. Three states are ends, each of its own meaning for the worker that owns the partition:

    REVOKED   given back; what was not committed, the next owner does     nothing to do
    FENCED    another worker has taken it over                          let go of it at once, write nothing more
    FAILED    a handler, the log or the store failed                    look at the error; start anew, or stop

An end is an end: who starts anew makes a new partition, which begins at ASSIGNED and trusts the log only.

IN_DOUBT is where a commit leaves a partition whose outcome is not known. What is in memory is then worth nothing: it
stands after a commit that may not exist. The only way out is to restore, which looks into the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from tailrace.core.errors import LifecycleError


class State(Enum):
    """Where a partition is in its life."""

    ASSIGNED = "assigned"
    RESTORING = "restoring"
    RUNNING = "running"
    COMMITTING = "committing"
    IN_DOUBT = "in doubt"
    REVOKED = "revoked"
    FENCED = "fenced"
    FAILED = "failed"


class Event(Enum):
    """What can happen to a partition."""

    RESTORE_BEGUN = "restore begun"
    RESTORED = "restored"
    COMMIT_BEGUN = "commit begun"
    COMMITTED = "committed"
    OUTCOME_UNKNOWN = "outcome of a commit unknown"
    LEFT = "left"
    FENCING_SEEN = "fencing seen"
    FAILURE = "failure"


_ENDINGS = {Event.FENCING_SEEN: State.FENCED, Event.FAILURE: State.FAILED}

TRANSITIONS: Mapping[State, Mapping[Event, State]] = MappingProxyType(
    {
        State.ASSIGNED: {
            Event.RESTORE_BEGUN: State.RESTORING,
            Event.LEFT: State.REVOKED,
        },
        State.RESTORING: {
            Event.RESTORED: State.RUNNING,
            Event.LEFT: State.REVOKED,
            **_ENDINGS,
        },
        State.RUNNING: {
            Event.COMMIT_BEGUN: State.COMMITTING,
            Event.LEFT: State.REVOKED,
            **_ENDINGS,
        },
        State.COMMITTING: {
            Event.COMMITTED: State.RUNNING,
            Event.OUTCOME_UNKNOWN: State.IN_DOUBT,
            **_ENDINGS,
        },
        State.IN_DOUBT: {
            Event.RESTORE_BEGUN: State.RESTORING,
            Event.LEFT: State.REVOKED,
        },
        State.REVOKED: {},
        State.FENCED: {},
        State.FAILED: {},
    }
)

ENDS = frozenset(state for state, ways in TRANSITIONS.items() if not ways)
"""States that nothing leads out of."""


class Lifecycle:
    """The state of one partition, moved by events only. ``name`` is for messages."""

    __slots__ = ("_name", "_state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = State.ASSIGNED

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    @property
    def ended(self) -> bool:
        """Whether nothing more can happen to it."""
        return self._state in ENDS

    def on(self, event: Event) -> None:
        """Move as the table says.

        Raises:
            LifecycleError: The table has no such event in the present state.
        """
        ways = TRANSITIONS[self._state]
        if event not in ways:
            expected = ", ".join(one.value for one in ways) or "nothing any more"
            raise LifecycleError(
                f"partition {self._name} is {self._state.value}: {event.value!r} cannot happen to it now",
                hint=f"Expected: {expected}.",
            )
        self._state = ways[event]

    def require(self, state: State, wanted: str) -> None:
        """Refuse ``wanted``, a thing to be done, unless the partition is in ``state``.

        Raises:
            LifecycleError: It is in another state.
        """
        if self._state is not state:
            raise LifecycleError(
                f"partition {self._name} is {self._state.value} and cannot {wanted}",
                hint="Make a new partition and restore it." if self.ended else f"It must be {state.value}.",
            )
