"""Checks a request for a rebuild, and makes it valid in every process."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from tailrace.core.errors import OptionError, UsageError
from tailrace.history.rebuilding.output_files import PARQUET
from tailrace.history.rebuilding.request import Request
from tailrace.log.opening import is_url
from tailrace.state.snapshots import Place


def checked(request: Request) -> Request:
    """The request with absolute paths, so that it does not depend on a working folder.

    Raises:
        UsageError: An option has a wrong type or value.
    """
    _check_types(request)
    if request.to.outputs != "none" and not request.to.outputs.startswith(PARQUET):
        raise OptionError(
            f"outputs cannot go to {request.to.outputs!r}",
            hint=f"Use none or {PARQUET}URI. To have them in a topic, append what these files hold: tailrace log append, or Spark.",
        )
    source, work = request.source, request.execution.work
    if request.to.incremental:
        _check_incremental(request)
    return replace(
        request,
        source=replace(
            source,
            log=source.log if is_url(source.log) else str(Path(source.log).absolute()),
            archive=None if source.archive is None else Place.at(source.archive).uri,
            base=None if source.base is None else Place.at(source.base).uri,
        ),
        to=replace(request.to, uri=Place.at(request.to.uri).uri),
        execution=replace(request.execution, work=None if work is None else str(Path(work).absolute())),
    )


def _check_incremental(request: Request) -> None:
    base = request.source.base
    if request.order != "tape" or request.partial:
        raise OptionError(
            "an incremental snapshot is made along the tape, of all keys, to the last commit",
            hint="Make a full one.",
        )
    if base is None or Place.at(base).uri != Place.at(request.to.uri).uri:
        raise OptionError(
            "an incremental snapshot lies where its parent does, from which it continues",
            hint="Name a base in the place of the snapshot.",
        )


def _check_types(request: Request) -> None:
    """Refuse values of wrong types, which structs do not look at: a snapshot could not be read again."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request)
    except (TypeError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"the request has an option of a wrong type or value: {error}",
            hint='See tailrace.history.rebuilding.request; app= is a text such as "package.module:app".',
        ) from None
