"""``tailrace`` as a soak changes it.

SOAK_PATIENCE_S is for how long the process waits for brokers: so that some commits stay without an answer, and calls end that a service
would repeat. SOAK_STRETCH is how far it looks back at once for published watermarks: so that it has to look more than once.
SOAK_HIDDEN_S is for how long its readers of history wait for what an open transaction hides.
SOAK_FAILS is how often a task fails after a slice: so that the others of its transaction lose their work, and nothing else fails.
"""

from __future__ import annotations

import os
from dataclasses import replace
from random import random
from typing import Any
from unittest.mock import patch


def main() -> None:
    """Run the command line."""
    from tailrace.cli.main import main as command_line
    from tailrace.core.errors import StateUnavailableError
    from tailrace.log.kafka import feeds
    from tailrace.log.options import LogOptions
    from tailrace.runtime.slices import Slices

    patience_s = float(os.environ.get("SOAK_PATIENCE_S", "60"))
    hidden_s = float(os.environ.get("SOAK_HIDDEN_S", "10"))
    stretch = int(os.environ.get("SOAK_STRETCH", feeds.STRETCH))
    odds, taken = float(os.environ.get("SOAK_FAILS", "0")), Slices.slice

    def failing(self: Slices, *arguments: Any) -> bool:
        worked = taken(self, *arguments)
        if worked and random() < odds:
            raise StateUnavailableError("the soak lets this task fail")
        return worked

    def given(**options: Any) -> LogOptions:
        return replace(LogOptions(**options), patience_s=patience_s, hidden_s=hidden_s)

    with (
        patch.object(Slices, "slice", failing),
        patch("tailrace.cli.run.LogOptions", given),
        patch.object(feeds, "STRETCH", stretch),
    ):
        command_line()


if __name__ == "__main__":
    main()
