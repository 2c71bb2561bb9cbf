"""How an error of ours reaches the user of Spark: its message, without the traceback of the worker that raised it.

A ``TailraceError`` names the place and says what to do. PySpark puts the traceback of its worker process before it, and
the message of the failed query is all of that.
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
    """Let a ``TailraceError`` pass as its message alone."""
    try:
        yield
    except TailraceError:
        if _is_worker():
            # PySpark looks at it when it reports this error, after which the process ends.
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _is_worker() -> bool:
    """Whether this is a process that PySpark has started, and not a program that uses Tailrace."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
