"""Opens a task's state. A damaged folder is set aside, and the state is restored from the log.

Theory. The log is the truth, and the folder a copy, so its loss costs only the time of a restore. But it is
evidence of a bad disk or a bug. So it is kept, under another name beside the new folder, and the service logs
a warning. Only the last damaged folder is kept: a disk that damages one after the other must not fill up.

Only damage is treated in this way. A folder of another task, of a newer version, in use, or unreadable for
the moment (a full disk, missing permissions) is refused, and left as it is: these have another cause, which a
new folder would hide.

Damage found only when a row is read stops the task (CorruptStateError). The operator then moves the folder.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from tailrace.core.errors import CorruptStateError
from tailrace.state.failures import state_failures
from tailrace.state.folder import StateIdentity
from tailrace.state.rocks import RocksStore
from tailrace.state.tuning import StateMemory

SUFFIX = ".damaged"
"""Added to the name of a folder that is set aside."""

_log = logging.getLogger("tailrace.state")


def open_or_set_aside(folder: Path, identity: StateIdentity, memory: StateMemory) -> RocksStore:
    """The store of a task; empty, to be restored from the log, if the folder was damaged.
    Raises StateFolderError, FormatError, StateInUseError or StateUnavailableError.
    """
    try:
        return RocksStore(folder, identity, memory)
    except CorruptStateError as error:
        damage = error
    aside = folder.with_name(folder.name + SUFFIX)
    with state_failures(folder, "setting a damaged state folder aside"):
        if aside.exists():
            shutil.rmtree(aside)
        folder.rename(aside)
    _log.warning(
        "the state folder is damaged: %s. It is kept as %s, and the state is restored from the log",
        damage.what,
        aside,
        extra={"app": identity.app, "partition": identity.partition},
    )
    return RocksStore(folder, identity, memory)
