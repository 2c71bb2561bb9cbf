"""Commands as processes of their own: they make clients and threads that should not outlive them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

_PATIENCE_S = 300


def tailrace(*arguments: object, environment: Mapping[str, str] | None = None, code: int = 0) -> str:
    """The output of a command, which has to end with this exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
        timeout=_PATIENCE_S,
    )
    assert done.returncode == code, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
    return done.stdout
