"""The request for a rebuild, in groups of options.

The smallest request names an app, the log that it is rebuilt from, and a place for the snapshot::

    Request(app="services.flights:app", source=Source(log="data/log"), to=Destination(uri="data/snapshots"))

=============================== =========================================================
``app, keys, order, until,``    what is rebuilt, in which order of its inputs, how far
``as_of_ms, tables``
``source``                      where history is read
``to``                          where the snapshot and the outputs go
``failures``                    which failures stop the rebuild, and which do not
``execution``                   how the work is done; it must not affect the result
=============================== =========================================================

A request is a value: it is encoded into the job, and its encoding is part of the rebuild's id.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from tailrace.core.declare.topic import OnError
from tailrace.core.engine.replay import Limit, Limits
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import OptionError, UsageError
from tailrace.log.interface import Ends
from tailrace.log.opening import Past
from tailrace.processes.environment import timezones_version
from tailrace.state.snapshots import Place

Tables: TypeAlias = Literal["auto", "first", "as-of"]
"""In stages, which reference data the first events find: what a service has found, all, or what has an earlier timestamp."""
Order: TypeAlias = Literal["auto", "tape", "stages"]
PARQUET = "parquet:"
"""Before the place of outputs."""
StoreKind: TypeAlias = Literal["rocks", "memory"]


class Source(Past, frozen=True, kw_only=True):
    """Where a rebuild reads history, and from where on."""

    base: str | None = None
    """URI of the snapshots that hold the base; None: the rebuild starts with empty state."""
    base_id: str = "latest"
    """Id or name of the base."""
    after_deleted: bool = False
    """In stages: skip the records that the log has deleted."""
    ends: Ends | None = None
    """The ends of all topics that are read; None: those at the beginning of the rebuild."""


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rebuild writes its snapshot and its outputs."""

    uri: str
    """Where the snapshot goes: a path or a URI."""
    name: str | None = None
    """The name of the savepoint; None: the snapshot is not a savepoint."""
    outputs: str = "none"
    """``none`` or ``parquet:URI``."""


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild does about failures, and about another environment."""

    on_error: OnError = "stop"
    """In stages, for a failure of a handler, or of decoding a record."""
    any_environment: bool = False
    """Accept another Python, msgspec or time zone data than the first run had."""


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """How the work is done."""

    store: StoreKind = "rocks"
    split: Annotated[int, msgspec.Meta(ge=1)] = 1
    """In stages: into how many ranges of keys the work of each partition is divided."""
    work: str | None = None
    """Folder for intermediate files; None: next to the snapshots, if those are in a folder."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a rebuild: of which app, from which history, up to where, and to which place."""

    app: str
    """``package.module:app``."""
    source: Source
    to: Destination
    keys: tuple[str, ...] = ()
    """The keys to rebuild, as a person writes them; empty: all keys."""
    order: Order = "auto"
    until: Limits = Limits()
    as_of_ms: int | None = None
    """Only the events up to this event time, and what follows from them; in stages."""
    tables: Tables = "auto"
    failures: Failures = Failures()
    execution: Execution = Execution()

    @property
    def limited(self) -> bool:
        """Whether the rebuild may stop before the last commit."""
        return self.until.any or self.as_of_ms is not None

    def limit(self, partition: int) -> Limit | None:
        """Where the task of a partition stops."""
        return dataclasses.replace(self.until.of(partition), as_of_ms=self.as_of_ms) if self.limited else None


_request = msgspec.msgpack.Decoder(Request)


def checked(request: Request) -> Request:
    """The request with absolute paths, so that it does not depend on a working folder.
    Raises UsageError: an option has a wrong type or value.
    """
    try:  # structs do not look at types, and a snapshot could not be read again
        _request.decode(msgspec.msgpack.encode(request))
    except (TypeError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"the request has an option of a wrong type or value: {error}",
            hint='See tailrace.history.rebuilding.request; app= is a text such as "package.module:app".',
        ) from None
    if request.to.outputs != "none" and not request.to.outputs.startswith(PARQUET):
        raise OptionError(
            f"outputs cannot go to {request.to.outputs!r}",
            hint=f"Use none or {PARQUET}URI. To have them in a topic, append what these files hold: tailrace log append, or Spark.",
        )
    source, work = request.source, request.execution.work
    return replace(
        request,
        source=replace(source.absolute(), base=None if source.base is None else Place.at(source.base).uri),
        to=replace(request.to, uri=Place.at(request.to.uri).uri),
        execution=replace(request.execution, work=None if work is None else str(Path(work).absolute())),
    )


def task_settings() -> TaskSettings:
    """The settings of a task of a rebuild."""
    return TaskSettings(cache_bytes=128 << 20, timezones=timezones_version(), scratch=TemporaryFile)
