"""Every error Tailrace raises on its own account, each named for what has to be done about it.

An error says three things: what happened, where, and what to do next. The place is kept in
typed attributes, not only in the text: a driver can complete it on the way up (a codec does not know
the offset of what it decodes)::

    raise BadRecordError("the value is not JSON", reason="undecodable", topic="departures", hint="...")
    ...
    except BadRecordError as error:
        error.partition, error.offset = 3, 17
        raise

Errors can be pickled; a worker process sends them to its parent.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

BadReason = Literal[
    "undecodable", "wrong-type", "missing-key", "bad-key", "missing-time", "bad-time", "foreign-partition"
]
"""Why a record was refused; the dead letters carry it as a header."""
HANDLER_FAILED: Final = "handler-failed"
"""What they carry where no record was refused: a handler has raised."""


class TailraceError(Exception):
    """The root of all errors of this package.

    The message says what happened (``what``), where, and what to do next (``hint``). The place is also in attributes, such as
    ``topic``, ``partition``, ``offset`` and ``key``. Errors can be pickled.
    """

    places: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that say where it happened, in the order of the message."""

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        known = ((name, getattr(self, name)) for name in self.places)
        where = ", ".join(f"{name} {value!r}" for name, value in known if value is not None)
        said = f"{self.what} ({where})" if where else self.what
        return f"{said.rstrip('.')}. {self.hint}" if self.hint else said


# --- The declaration is wrong: change the code ---


class DefinitionError(TailraceError, TypeError):
    """A declaration (app, topic, actor, handler) makes no sense: change the code. Raised on import, or by ``App.plan``."""


class DurableTypeError(DefinitionError):
    """A field (``owner.field``) has a type that cannot be stored and read back unchanged, such as a set: change the type."""

    places = ("owner", "field")

    def __init__(
        self, what: str, *, owner: str | None = None, field: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.owner = owner
        self.field = field


class UnknownAppError(TailraceError):
    """No app can be found under a name that was given on a command line."""


# --- A handler does what it must not: change the code ---


class UsageError(TailraceError):
    """The API was used in a way that it does not allow, in a handler or by the program around it: change the code."""


class DurableValueError(UsageError):
    """A handler has set a field to a value that is not of the declared type, so a restart would change or lose it."""

    places = ("owner", "field")

    def __init__(
        self, what: str, *, owner: str | None = None, field: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.owner = owner
        self.field = field


class UnsetFieldError(DurableValueError):
    """A field without default was still unset when the handler returned."""


class StateLeakError(UsageError):
    """An object that belongs to one key or one step was used in another."""

    places = ("actor", "key")

    def __init__(
        self, what: str, *, actor: str | None = None, key: object | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.actor = actor
        self.key = key


class EmittedTypeError(UsageError):
    """An event was emitted, or a message sent, whose readers would not get what it says. Found in checked runs."""

    places = ("topic",)

    def __init__(
        self, what: str, *, topic: str | None = None, field: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.topic = topic
        self.field = field


class TimerLoopError(UsageError):
    """Timers of one key keep setting timers that are due at once."""

    places = ("actor", "key", "timer")

    def __init__(
        self,
        what: str,
        *,
        actor: str | None = None,
        key: object | None = None,
        timer: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what, hint=hint)
        self.actor = actor
        self.key = key
        self.timer = timer


class HandlerError(TailraceError):
    """A handler has raised an exception, which is ``__cause__``. Everything the handler did is undone.

    The attributes say where: ``app``, ``actor``, ``handler``, ``topic``, ``partition``, ``offset``, ``key``, ``timer``. With
    ``on_error="stop"`` it stops the task, and a harness raises it from the call that sent the event.
    """

    places = ("app", "actor", "handler", "topic", "partition", "offset", "key", "timer")

    def __init__(
        self,
        what: str,
        *,
        app: str | None = None,
        actor: str | None = None,
        handler: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: object | None = None,
        timer: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what, hint=hint)
        self.app = app
        self.actor = actor
        self.handler = handler
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.timer = timer


class QueryError(TailraceError):
    """A query failed, or asked for an actor, query or key that is not here; ``__cause__`` may say more."""

    places = ("actor", "query", "key")

    def __init__(
        self,
        what: str,
        *,
        actor: str | None = None,
        query: str | None = None,
        key: object | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what, hint=hint)
        self.actor = actor
        self.query = query
        self.key = key


# --- The input is wrong: look at the record, its producer or its topic ---


class RecordError(TailraceError):
    """Something about one record; knows its place in the log as far as the raiser did."""

    places: ClassVar[tuple[str, ...]] = ("topic", "partition", "offset", "key")

    def __init__(
        self,
        what: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: object | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what, hint=hint)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key


class BadRecordError(RecordError):
    """A record cannot be handled: undecodable, of the wrong type, without a key, with an absurd time."""

    places = ("reason", *RecordError.places)

    def __init__(
        self,
        what: str,
        *,
        reason: BadReason = "undecodable",
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: object | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what, topic=topic, partition=partition, offset=offset, key=key, hint=hint)
        self.reason: BadReason = reason


class EventValueError(RecordError):
    """An event holds a value that its record cannot: it would be lost, or come back as another one. It was not written."""

    places = ("topic",)

    def __init__(
        self, what: str, *, topic: str | None = None, field: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, topic=topic, hint=hint)
        self.field = field


class WrongPartitionError(RecordError):
    """A key came from a partition that murmur2 does not give it: its producer uses another partitioner."""


class UnknownTopicError(RecordError):
    """A topic that was named is not declared, or does not exist in the log."""


class RecordTooLargeError(RecordError):
    """A record is larger than the log takes. It was not appended."""


class OffsetGoneError(RecordError):
    """A reader stands at an offset the log does not hold: deleted by retention, or past the log's end."""


class TopicMismatchError(RecordError):
    """A topic exists with other settings (partitions, compaction) than the ones asked for."""


# --- The stored state is not ours to run on: look at the state folder or the versions ---


class IncompatibleStateError(TailraceError):
    """What is stored for an actor cannot be read as what is now declared."""

    places = ("actor", "field", "stored", "declared")

    def __init__(
        self,
        what: str,
        *,
        actor: str | None = None,
        field: str | None = None,
        stored: str | None = None,
        declared: str | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(what, hint=hint)
        self.actor = actor
        self.field = field
        self.stored = stored
        self.declared = declared


class InputsChangedError(TailraceError):
    """An app has other inputs, or another number of partitions, than its history in the log was made with."""


class StateFolderError(TailraceError):
    """Something about stored state; ``path`` is where it lies, if it lies in a file."""

    places = ("path",)

    def __init__(self, what: str, *, path: str | None = None, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.path = path


class NewerFormatError(StateFolderError):
    """State or tape was written by a newer version than this one; run that version."""


class CorruptStateError(StateFolderError):
    """State or tape is damaged. It is left as it was found."""


class ForeignStateError(StateFolderError):
    """A folder holds something else, or another app's or task's state. It is left as it was found."""


class StateAheadOfLogError(StateFolderError):
    """State has seen more of the changelog than the log holds: it belongs to another log, or the log lost its end."""


class StateUnavailableError(StateFolderError):
    """The state folder cannot be written or read now: full, read-only, gone. Nothing committed is lost."""


class StateInUseError(StateUnavailableError):
    """Another process, or another store of this one, holds the state folder. One task has one owner at a time."""


# --- A snapshot cannot be used or made: look at it, or at where it lies ---


class SnapshotError(TailraceError):
    """Something about a snapshot; ``snapshot`` is its id, ``path`` where it lies, without secrets."""

    places = ("snapshot", "path")

    def __init__(
        self, what: str, *, snapshot: str | None = None, path: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.snapshot = snapshot
        self.path = path


class UnknownSnapshotError(SnapshotError):
    """No snapshot answers to what was asked for, or more than one does."""


class IncompleteSnapshotError(SnapshotError):
    """A file of a snapshot, or the snapshot it builds upon, is missing."""


class AlteredSnapshotError(SnapshotError):
    """A snapshot is not as it was published: a size, a count or a checksum does not fit."""


class ForeignSnapshotError(SnapshotError):
    """A snapshot belongs to another app, or builds upon one that does not fit it."""


class SnapshotMismatchError(TailraceError):
    """A snapshot does not fit the app, or the log, that is to be started from it."""


class SnapshotTakenError(SnapshotError):
    """A snapshot of this id, or a savepoint of this name, has been published already."""


class SnapshotInUseError(SnapshotError):
    """A snapshot is not deleted because incremental ones build upon it."""


class SnapshotUnavailableError(SnapshotError):
    """The place of a snapshot cannot be read or written now: full, denied, gone. No half snapshot was published."""


# --- The log or another process stands in the way: retry, restart or look there ---


class LogUnavailableError(TailraceError):
    """The log did not answer. Nothing was committed by this call; it may be retried."""


class LogFolderError(TailraceError):
    """Something about the files of a log; ``segment`` is the file, ``position`` the byte in it."""

    places = ("segment", "position")

    def __init__(
        self, what: str, *, segment: str | None = None, position: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.segment = segment
        self.position = position


class CorruptLogError(LogFolderError):
    """The log is damaged: a checksum does not fit. It is left as it was found, and nothing behind it is read."""


class ForeignLogError(LogFolderError):
    """A folder that should hold a log holds something else. It is left as it was found."""


class FencedError(TailraceError):
    """Another worker has taken this task over. Stop at once; nothing more of it can be committed here."""


class TaskOwnedError(TailraceError):
    """Another process owns a task and is alive. A task has one owner at a time."""


class WorkerLostError(TailraceError):
    """A worker process ended and could not be put in order again."""


class CommitUnknownError(TailraceError):
    """A commit was sent and its outcome is not known; look it up in the log before going on."""


class OffsetsDisagreeError(TailraceError):
    """The offsets committed for a group are not those of the changelog's last cut. One of the two was changed by hand."""


class LifecycleError(UsageError):
    """A partition was asked for something that it cannot do in the state it is in."""


class OldHistoryError(TailraceError):
    """The history was written under other rules; going on from it would give other results than it has."""


class ReplayDivergedError(TailraceError):
    """A replay gave other results than the first run; the message names the first difference.

    Either the code was changed, or a handler depends on something that is not recorded: a clock, chance, a global variable,
    the order of a set.
    """


class UnsplittableError(TailraceError):
    """A task cannot be run key by key here, or its keys do not add up to the whole: run it whole."""


class EnvironmentMismatchError(TailraceError):
    """A rebuild runs where results could differ (another Python, msgspec or tzdata than the tape names)."""


# --- What batch work stands on: look at the installation, or at what was archived ---


class MissingExtraError(TailraceError):
    """A part of Tailrace was asked for whose libraries are not installed."""


class UnfitJavaError(TailraceError):
    """There is no Java that Spark can run on; ``java`` is the program that was found, if there is one."""

    places = ("java",)

    def __init__(self, what: str, *, java: str | None = None, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.java = java


class ArchiveError(TailraceError):
    """Something about an archive of a log; ``path`` is the file in it, or the archive itself."""

    places = ("path",)

    def __init__(self, what: str, *, path: str | None = None, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.path = path


# --- A command is done, but not with everything: look at what was set aside ---


class SetAsideError(TailraceError):
    """What a command could not handle was set aside, and the rest is done: dead letters, rows of a file."""
