"""Every error that Tailrace raises. Each class is named for what the operator has to do about it.

The place of an error (``topic``, ``partition``, ``offset``, ``key``) is kept in typed attributes as well as
in the text, so a caller further up can complete it. A codec, for example, does not know the offset of the
record that it decodes.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypedDict, Unpack

BadReason = Literal[
    "undecodable",
    "wrong-type",
    "missing-key",
    "bad-key",
    "missing-time",
    "bad-time",
    "from-the-future",
    "foreign-partition",
]
"""Why a record was refused. A dead letter has it as a header."""
FROM_THE_FUTURE: Final[BadReason] = "from-the-future"
"""The event time is further ahead of the clock than ``ahead_of_clock``. The tape has these refusals."""
HANDLER_FAILED: Final = "handler-failed"
"""The value of that header for a failed handler: no record was refused."""


class Place(TypedDict, total=False):
    """The attributes that give the place of an error, as keywords, in the order of its message."""

    reason: BadReason
    app: str | None
    actor: str | None
    handler: str | None
    query: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    key: object | None
    timer: str | None
    owner: str | None
    field: str | None
    stored: str | None
    declared: str | None
    snapshot: str | None
    path: str | None
    position: int | None
    java: str | None


class TailraceError(Exception):
    """The root of all errors.

    The message says what happened (``what``), where, and what to do next (``hint``). Can be pickled. The place is in
    attributes, which are None where they do not apply.
    """

    places: ClassVar[tuple[str, ...]] = tuple(Place.__annotations__)
    """Names of the attributes that the message shows, in its order."""

    app: str | None = None
    actor: str | None = None
    handler: str | None = None
    query: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: object | None = None
    timer: str | None = None
    owner: str | None = None
    field: str | None = None
    stored: str | None = None
    declared: str | None = None
    snapshot: str | None = None
    path: str | None = None
    position: int | None = None
    java: str | None = None

    def __init__(self, what: str, *, hint: str = "", **place: Unpack[Place]) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.__dict__.update(place)

    def __str__(self) -> str:
        known = ((name, getattr(self, name, None)) for name in self.places)
        where = ", ".join(f"{name} {value!r}" for name, value in known if value is not None)
        text = f"{self.what} ({where})" if where else self.what
        return f"{text.rstrip('.')}. {self.hint}" if self.hint else text


# --- The declaration is wrong: change the code ---


class DefinitionError(TailraceError, TypeError):
    """A declaration (app, topic, actor, handler) is wrong: change the code.

    Raised on import, or by ``App.plan``.
    """


class DurableTypeError(DefinitionError):
    """The type of a field (``owner.field``), such as a set, cannot be stored unchanged: change the type."""


class UnknownAppError(TailraceError):
    """No app is found under a name given on a command line."""


# --- A handler misuses the API: change the code ---


class UsageError(TailraceError):
    """A handler, or the program around it, used the API in a way that is not allowed: change the code."""


class OptionError(UsageError):
    """An option, or the same argument of a function, is wrong or not available on this log: correct it."""


class DurableValueError(UsageError):
    """A handler set a field to a value of another type than declared, or left one without a value."""


class UnfitValueError(UsageError):
    """A value has the right type and cannot be stored, or be a time: an int beyond 64 bits, a time without a zone. Look at the event."""


class StateLeakError(UsageError):
    """An object that belongs to one key or one step was used in another."""


class EmittedTypeError(UsageError):
    """Readers of an emitted event or sent message would get a different value. Raised in checked runs."""

    places = ("topic",)


class TimerLoopError(UsageError):
    """Timer handlers keep setting timers that are due at once, or set timers without end at the end of input."""


class HandlerError(TailraceError):
    """A handler raised an exception, which is ``__cause__``. Everything that the handler did is undone.

    The attributes give the place: ``app``, ``actor``, ``handler``, ``topic``, ``partition``, ``offset``,
    ``key``, ``timer``. With ``on_error="stop"`` the task stops. A harness raises this error from the call
    that sent the event.
    """


class QueryError(TailraceError):
    """A query failed, or named an actor, query or key that is not here. ``__cause__`` may give the reason."""


# --- The input is wrong: look at the record, its producer or its topic ---


class BadRecordError(TailraceError):
    """A record cannot be handled: undecodable, of the wrong type, without key, or its time makes no sense."""

    reason: BadReason = "undecodable"


class EventValueError(TailraceError):
    """A record cannot hold an event's value: readers would get another one, or none. It was not written."""

    places = ("topic",)


class WrongPartitionError(TailraceError):
    """A record's key does not belong to its partition by murmur2: the producer uses another partitioner."""

    belongs_to: int | None = None
    """The partition of the key."""


class UnknownTopicError(TailraceError):
    """A named topic is not declared, or does not exist in the log."""


class RecordTooLargeError(TailraceError):
    """A record is larger than the log accepts. It was not appended."""


class UnmeasuredStateError(TailraceError):
    """A commit has a row of state that is too large. The task must be restored, and measure each event (``TaskSettings.reload``)."""


class OffsetGoneError(TailraceError):
    """A reader's offset is not in the log: retention deleted it, or it is past the end of the log."""


class TopicMismatchError(TailraceError):
    """A topic exists with other settings (partitions, compaction) than the requested ones."""


class InputEndedError(TailraceError):
    """A record came to an input of an app whose inputs were ended for good. It was not handled."""


# --- State and log are not of one history: decide which of the two is right ---

Why = Literal["commit", "topic", "record", "rows", "tape", "offsets", "log"]
"""What tells two histories apart."""


class OtherHistoryError(TailraceError):
    """State, or what an app has read, is not of the history that this log has. Decide which of the two is right.

    ``why`` says what differs:

    - ``commit``: the log does not have the commit that a snapshot stands at
    - ``topic``: a topic was deleted and created again, so offsets in it mean other records now
    - ``record``: the record that was read last from an input is lost, or another one is in its place
    - ``rows``: the changelog gives other rows than its last commit notes
    - ``tape``: changelog and tape do not end with the same commit
    - ``offsets``: the committed offsets of a group are not those of the last commit
    - ``log``: the app is on another log, or is being moved, or a move to this log is refused
    """

    def __init__(self, what: str, *, why: Why = "commit", hint: str = "", **place: Unpack[Place]) -> None:
        super().__init__(what, hint=hint, **place)
        self.why: Why = why


# --- The stored state cannot be used: look at the state folder or the versions ---


class IncompatibleStateError(TailraceError):
    """The stored state of an actor cannot be read as the type that is declared now."""


class InputsChangedError(TailraceError):
    """An app has other inputs, or another number of partitions, than its history in the log."""


class StateFolderError(TailraceError):
    """An error about stored state, such as a folder of another app. ``path`` is its file or folder, if it is in one."""


class FormatError(StateFolderError):
    """Another version of Tailrace has written this, in another format: run that version."""


class CorruptStateError(StateFolderError):
    """State or tape is damaged. It is left unchanged."""


class StateUnavailableError(StateFolderError):
    """The state folder cannot be used now: it is full, read-only or missing. Nothing committed is lost."""


class StateInUseError(StateUnavailableError):
    """Another process, or store of this process, has the state folder open. A task has one owner."""


# --- A snapshot cannot be used or taken: look at it, or at its location ---


class SnapshotError(TailraceError):
    """A snapshot cannot be published, read or deleted here. ``snapshot`` is its id, ``path`` its location without secrets."""


class UnknownSnapshotError(SnapshotError):
    """No snapshot matches the name, id or tag that was given, or more than one does."""


class AlteredSnapshotError(SnapshotError):
    """A snapshot was changed after it was published: a file, or its parent, is missing or differs."""


class SnapshotMismatchError(TailraceError):
    """A snapshot does not match the app, or the log, that should start from it."""


class SnapshotUnavailableError(SnapshotError):
    """A snapshot's location cannot be used now: full, denied or missing. No partial one was published."""


# --- The log or another process is in the way: retry, restart or look there ---


class LogUnavailableError(TailraceError):
    """The log did not answer, or there is none at this path. This call committed nothing and may be retried."""


class LogDeniedError(TailraceError):
    """The log denies access: the credentials are wrong, or the user lacks a right. A retry does not help."""


class CorruptLogError(TailraceError):
    """The log is damaged, or may be after a failed sync. It is not read past the damage, and nothing is appended."""


class ForeignLogError(TailraceError):
    """A folder that should hold a log holds something else. It is left unchanged."""


class RegistryError(TailraceError):
    """A schema registry is down, or refuses a schema: look there. The task stops; no record is at fault."""


class FencedError(TailraceError):
    """Another worker has taken over this task. Stop at once: nothing more of it can be committed here."""


class TaskOwnedError(TailraceError):
    """Another process owns a task and is alive. A task has one owner at a time."""


class ClockError(TailraceError):
    """The wall clock has jumped by more than a day: set it, or accept it (``--accept-clock``)."""


class WorkerLostError(TailraceError):
    """A worker process ended and could not be restarted."""


class CommitUnknownError(TailraceError):
    """A commit was sent and its outcome is unknown: look it up in the log before continuing."""


class LifecycleError(UsageError):
    """An operation is not allowed in the current state of a partition."""


class ReplacedVersionError(TailraceError):
    """A newer version of the app has taken over a task: start that version here."""


class StateMovedError(TailraceError):
    """The changelog that is read was replaced by an upgrade of the app: open it again, to read the one that has the state now."""


class ReplayDivergedError(TailraceError):
    """A replay differs from the first run: code was changed, or a handler depends on unrecorded input."""


class EnvironmentMismatchError(TailraceError):
    """A rebuild runs on another Python, msgspec or tzdata than the tape names: results could differ."""


# --- Batch work: look at the installation or at the archive ---


class MissingExtraError(TailraceError):
    """The libraries of an optional part of Tailrace are not installed."""


class UnfitJavaError(TailraceError):
    """There is no Java that Spark can run on. ``java`` is the program that was found, if there is one."""


KEPT_ELSEWHERE: Final = "an archive (--archive)"
"""What hints name as the place of records that the log has deleted."""


class ArchiveError(TailraceError):
    """An error about an archive of a log. ``path`` is the file in it, or the archive itself."""


class ExportError(TailraceError):
    """An export cannot be written. ``path`` is its folder."""


class SetAsideError(TailraceError):
    """A command set aside items that it could not handle (dead letters, file rows). All others are done."""
