"""A place for an app that a test has made: units find their app by module and name."""

from __future__ import annotations

import tailrace as tr

app = tr.App("nothing")


def place(made: tr.App) -> str:
    """Put an app here, instead of the one before. Returns its reference."""
    global app  # noqa: PLW0603 (a unit looks for the name in the module)
    app = made
    return f"{__name__}:app"
