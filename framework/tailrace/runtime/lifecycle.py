"""The states of a partition and their transitions, as a table.

Rule 1: only this file decides the state of a partition. The code that does the work reports an ``Event``; it
never sets a state.

Rule 2: an event that the table does not have for the current state is a bug, and raises LifecycleError. No event is ignored
or applied twice.

Theory. A partition is *assigned* to a worker, takes over its transactional id and is *restored*. Then it *runs*, and
*commits* at intervals. Three states are final, each with its own meaning for the worker that owns the partition:

    REVOKED   given back; the next owner does the uncommitted work    nothing to do
    FENCED    another worker has taken it over                        release it at once, write nothing more
    FAILED    a handler, the log or the store failed                  look at the error; make a new partition, or stop

A final state is never left. To start again, make a new partition, which trusts only the log.

IN_DOUBT is the state after a commit whose outcome is unknown, so the state in memory may be that after a commit that does not exist.
The only way out is to restore, which reads the log. ROLLED_BACK is the state after the transaction that the task shares with others
was aborted. The store has the last commit, so it is the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from tailrace.core.errors import LifecycleError


class State(Enum):
    """The state of a partition."""

    ASSIGNED = "assigned"
    RESTORING = "restoring"
    RUNNING = "running"
    COMMITTING = "committing"
    IN_DOUBT = "in doubt"
    ROLLED_BACK = "rolled back"
    REVOKED = "revoked"
    FENCED = "fenced"
    FAILED = "failed"


class Event(Enum):
    """An event in the life of a partition."""

    RESTORE_BEGUN = "restore begun"
    RESTORED = "restored"
    COMMIT_BEGUN = "commit begun"
    COMMITTED = "committed"
    OUTCOME_UNKNOWN = "outcome of a commit unknown"
    WORK_LOST = "uncommitted work lost"
    LEFT = "left"
    FENCING_SEEN = "fencing seen"
    FAILURE = "failure"


_ENDINGS = {Event.FENCING_SEEN: State.FENCED, Event.FAILURE: State.FAILED}

TRANSITIONS: Mapping[State, Mapping[Event, State]] = MappingProxyType(
    {
        State.ASSIGNED: {Event.RESTORE_BEGUN: State.RESTORING, Event.LEFT: State.REVOKED},
        State.RESTORING: {Event.RESTORED: State.RUNNING, Event.LEFT: State.REVOKED, **_ENDINGS},
        State.RUNNING: {
            Event.COMMIT_BEGUN: State.COMMITTING,
            Event.WORK_LOST: State.ROLLED_BACK,
            Event.LEFT: State.REVOKED,
            **_ENDINGS,
        },
        State.COMMITTING: {
            Event.COMMITTED: State.RUNNING,
            Event.OUTCOME_UNKNOWN: State.IN_DOUBT,
            Event.WORK_LOST: State.ROLLED_BACK,
            **_ENDINGS,
        },
        State.IN_DOUBT: {Event.RESTORE_BEGUN: State.RESTORING, Event.LEFT: State.REVOKED},
        State.ROLLED_BACK: {Event.RESTORE_BEGUN: State.RESTORING, Event.LEFT: State.REVOKED},
        State.REVOKED: {},
        State.FENCED: {},
        State.FAILED: {},
    }
)

ENDS = frozenset(state for state, ways in TRANSITIONS.items() if not ways)
"""Final states."""


class Lifecycle:
    """The state of one partition, changed only by events. ``name`` is for messages."""

    __slots__ = ("_name", "_state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = State.ASSIGNED

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self._state in ENDS

    def on(self, event: Event) -> None:
        """Apply an event. Raises LifecycleError: the table does not have the event in the current state."""
        ways = TRANSITIONS[self._state]
        if event not in ways:
            expected = ", ".join(one.value for one in ways) or "no further event"
            raise LifecycleError(
                f"partition {self._name} is {self._state.value}: the event {event.value!r} is not allowed now",
                hint=f"Expected: {expected}.",
            )
        self._state = ways[event]

    def require(self, state: State, wanted: str) -> None:
        """Refuse ``wanted``, an operation, unless the partition is in ``state``.
        Raises LifecycleError: it is in another state.
        """
        if self._state is not state:
            raise LifecycleError(
                f"partition {self._name} is {self._state.value} and cannot {wanted}",
                hint="Make a new partition and restore it." if self.ended else f"It must be {state.value}.",
            )
