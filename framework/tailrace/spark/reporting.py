"""Reports a Tailrace error to the user of Spark: its message, without the worker's traceback.

The message of a ``TailraceError`` has the place and the fix. PySpark would put the traceback of its worker
process before it, and report both as the message of the failed query.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

from tailrace.core.errors import TailraceError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def reported() -> Generator[None]:
    """Report a ``TailraceError`` by its message alone."""
    try:
        yield
    except TailraceError:
        if _is_worker():
            # PySpark reads it when it reports this error. Afterwards the process ends.
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _is_worker() -> bool:
    """Whether PySpark started this process, and not a program that uses Tailrace."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
