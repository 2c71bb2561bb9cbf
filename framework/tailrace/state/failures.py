"""Translates errors of RocksDB and the operating system to Tailrace's errors.

rocksdict raises bare `Exception`s with RocksDB's status as text: its kind ("Corruption", "IO error"), then
the message of the C library. The latter takes precedence here: a file that is reported as corrupt because it
could not be opened for lack of permission is not corrupt. An unknown error is treated as an outage, since its
hint does not tell the user to delete state.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import DbClosedError

from tailrace.core.errors import CorruptStateError, StateFolderError, StateInUseError, StateUnavailableError
from tailrace.core.outages import OUTAGES

REBUILD = "Move the folder away and start again: the state is then rebuilt from the changelog."
RESUME = "Nothing committed is lost: the state continues from its last cut when it is opened again."

_DAMAGE = (
    "Corruption",
    "No such file or directory",
    "does not exist",
    "Not implemented",
    "checksum",
    "truncated",
)
_HELD = ("lock hold by current process", "While lock file")


def as_state_error(error: Exception, path: Path, doing: str) -> Exception:
    """The Tailrace error for a failure of the store while ``doing`` something; any other error as it is."""
    if isinstance(error, StateFolderError):
        return error
    if isinstance(error, DbClosedError):
        return StateUnavailableError(f"the store was closed before {doing}", path=str(path))
    if not isinstance(error, OSError) and type(error) is not Exception:
        return error  # a wrong argument is the caller's mistake
    message = str(error)
    if outage := outage_of(error):
        what, hint = outage
        return StateUnavailableError(
            f"{what}, while {doing}: {message}", path=str(path), hint=f"{hint}, and restart. {RESUME}"
        )
    if any(sign in message for sign in _HELD):
        return in_use(path)
    if not isinstance(error, OSError) and any(sign in message for sign in _DAMAGE):
        return CorruptStateError(
            f"the state is damaged, found while {doing}: {message}", path=str(path), hint=REBUILD
        )
    return StateUnavailableError(
        f"the state folder failed while {doing}: {message}", path=str(path), hint=RESUME
    )


@contextmanager
def state_failures(path: Path, doing: str) -> Generator[None]:
    """Turn errors of the operating system into those of ``as_state_error``."""
    try:
        yield
    except OSError as error:
        raise as_state_error(error, path, doing) from error


def outage_of(error: Exception) -> tuple[str, str] | None:
    """What has failed outside of this program, and what to do, by the number or the text of an error."""
    number, message = getattr(error, "errno", None), str(error)
    for known, outage in OUTAGES.items():
        if number == known or os.strerror(known) in message:
            return outage
    return None


def in_use(path: Path) -> StateInUseError:
    """The error for a folder that another store has open."""
    return StateInUseError(
        "the state folder is in use by another store, in this process or another",
        path=str(path),
        hint="Stop the other owner, or wait until it has ended. Only one store at a time can use a folder.",
    )
