"""Copies a log while it is used: a consistent file that can be read anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import apsw

from tailrace.core.errors import ForeignLogError
from tailrace.log.embedded.database import MAKING, opened, put_in_place
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.view import View

_PAGES_AT_ONCE = 4_096


def copy_log(view: View, folder: Path) -> None:
    """See ``EmbeddedLog.copy_to``."""
    with failing(folder, "copying the log"):
        folder.mkdir(parents=True, exist_ok=True)
        making = folder / MAKING
        making.unlink(missing_ok=True)
        if strangers := sorted(entry.name for entry in folder.iterdir()):
            raise ForeignLogError(
                f"the folder for the copy is not empty: {', '.join(strangers[:3])}",
                segment=str(folder),
                hint="Name another one; nothing in this one was touched.",
            )
        with view.moment("copying the log") as rows:
            copy = opened(making, create=True)
            try:
                copy.pragma("synchronous", 0)
                target, source = cast("apsw.Connection", copy), cast("apsw.Connection", rows.connection)
                with target.backup("main", source, "main") as backup:
                    while not backup.done:
                        backup.step(_PAGES_AT_ONCE)
                copy.pragma("journal_mode", "delete")
            finally:
                copy.close()
        put_in_place(making)
