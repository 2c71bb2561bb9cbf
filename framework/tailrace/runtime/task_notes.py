"""What the owners of a task leave with it for the next one: who they are, what they read, and the versions of the code.

Theory. Processes of two versions of an app run side by side while it is upgraded, and the group gives a task to any of them. Code
that was replaced must not continue what its successor has begun: it would handle events by old rules, in silence, even where
the stored schema lets it. Versions have no order of their own, so the order is that of history: each task has the list of the versions
that took it over, the last one at its end.

    the version of this process is    it
    the last one, or the only one     continues
    not in the list                   is new: it continues, and is added at the end
    in the list, not at its end       was replaced: it refuses the task, and the process ends (ReplacedVersionError)

A process cannot give a single task back to its group: the group would give it again. So it ends, and its tasks move to the others.
To go back to an earlier version on purpose, a process is started with ``--downgrade``, which puts its version at the end.

A version is what ``App(version=)`` says, with a digest of the declared state and inputs: so a changed schema counts without it.

The inputs tell two services apart that were given one name by mistake, even before either has committed. Later the cut does, too.

The group deletes its notes when it has had no member for a week (``offsets.retention.minutes``). So each commit notes the last versions of
its task, too, in a header of the cut, and a task without a note is judged by these.

The embedded log keeps no list, and a move to another log does not take it along: there the first version that runs begins it.

A note is written before a task is restored, by its owner only (``Tasks.leave_note``). It counts even if the process dies right after.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import encode_schemas
from tailrace.core.errors import InputsChangedError, ReplacedVersionError
from tailrace.core.records import InputRecord
from tailrace.history.reading.changelog import last_cut
from tailrace.log.interface import Log, TopicPartition
from tailrace.log.tasks import Tasks
from tailrace.state.provenance import provenance_of

_log = logging.getLogger("tailrace.service")

_MOST_VERSIONS: Final = 20
_MOST_WITH_CUTS: Final = 5
_MOST_BYTES: Final = 3_500
"""Brokers keep 4,096 bytes (``offset.metadata.max.bytes``)."""


class TaskNote(msgspec.Struct, omit_defaults=True, frozen=True):
    """A note, stored as JSON."""

    member: str
    """The owner's name in the group."""
    versions: list[str]
    inputs: list[str] | None = None
    """The topics that the owner reads; None: their names are too long."""

    def encode(self) -> str:
        """As it is stored."""
        return msgspec.json.encode(self).decode()


_note = msgspec.json.Decoder(TaskNote)


class TaskNotes:
    """Reads and leaves the notes of an app's tasks. ``committed`` returns the versions that have committed a task, by its changelog."""

    def __init__(
        self,
        plan: Plan,
        kept: Tasks,
        *,
        downgrade: bool = False,
        change_inputs: bool = False,
        committed: Callable[[int], Sequence[str]] = lambda _: (),
    ) -> None:
        self._plan = plan
        self._kept = kept
        self._committed = committed
        self._downgrade = downgrade
        self._change_inputs = change_inputs
        self._version = version_of(plan)

    def take(self, number: int) -> None:
        """Called before a task is restored here: check the note of its last owner, and leave one.

        Raises:
            ReplacedVersionError: Another version of the app has taken the task over from this one.
            InputsChangedError: The last owner read other topics.
        """
        text = self._kept.notes().get(number, "")
        before = _decoded(text)
        inputs = [one.name for one in self._plan.inputs]
        versions = list(self._committed(number)) if before is None else before.versions
        self._check_version(number, versions)
        inputs_before = None if before is None or self._change_inputs else before.inputs
        if inputs_before is not None and set(inputs_before) != set(inputs):
            raise InputsChangedError(
                f"the app {self._plan.app!r} reads {_named(inputs)}, and the last process that had partition {number} "
                f"reads {_named(inputs_before)}",
                hint="If this is another service, give it another name. If the change is intended, run it once with --change-inputs.",
            )
        versions = [*(one for one in versions if one != self._version), self._version][-_MOST_VERSIONS:]
        note = TaskNote(self._kept.member_id, versions, inputs)
        if len(note.encode()) > _MOST_BYTES:
            note = TaskNote(note.member, versions)
        if note.encode() != text:
            self._kept.leave_note(number, note.encode())

    def owners(self) -> dict[int, str]:
        """By task, the member that owns it, or owned it last. May be called from any thread."""
        found = {number: _decoded(text) for number, text in self._kept.notes().items()}
        return {number: note.member for number, note in found.items() if note is not None}

    def _check_version(self, number: int, versions: Sequence[str]) -> None:
        if self._version in versions[:-1] and not self._downgrade:
            raise ReplacedVersionError(
                f"partition {number} of the app {self._plan.app!r} was taken over by version {versions[-1]}, which has "
                f"replaced version {self._version} of this process",
                hint="Nothing was changed. Start the version that has replaced it here. To return to this one, also after a "
                "roll-back, stop all processes of the other version, and run this one once with --downgrade.",
            )


def version_of(plan: Plan) -> str:
    """The version of an app's code, as its declarations tell."""
    schemas = encode_schemas({one.name: one.schema for one in plan.actors})
    inputs = "\0".join(one.name for one in plan.inputs).encode()
    digest = blake2b(b"%d %b%b" % (len(schemas), schemas, inputs), digest_size=4).hexdigest()
    return f"{plan.version[:60]!r} ({digest})"


def committed_versions(plan: Plan, log: Log, number: int) -> Sequence[str]:
    """The versions that have committed a task, as its last commit in the changelog says."""
    return provenance_of(last_cut(log, TopicPartition(plan.changelog_topic, number))).versions


def versions_after(plan: Plan, last: InputRecord | None) -> Sequence[str]:
    """The versions to note with the cuts of a task that this version continues after the cut ``last``."""
    version = version_of(plan)
    return [*(one for one in provenance_of(last).versions if one != version), version][-_MOST_WITH_CUTS:]


def _decoded(text: str) -> TaskNote | None:
    """A note; None if there is none, or it is not one of ours."""
    try:
        return _note.decode(text) if text else None
    except msgspec.MsgspecError:
        return None


def _named(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names)) or "nothing"
