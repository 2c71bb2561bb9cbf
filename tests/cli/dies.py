"""An app whose module ends every process that imports it but the one that tests."""

from __future__ import annotations

import multiprocessing
import os

from tests.runtime.served import app

__all__ = ["app"]

if multiprocessing.parent_process() is not None:
    os._exit(7)
