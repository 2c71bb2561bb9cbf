"""A place for an app that a test has made: units find their app by module and name."""

from __future__ import annotations

import tailrace as tr

app = tr.App("nothing")
