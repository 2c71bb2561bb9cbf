"""What tests services without a server: harness, systems of apps, in-memory log, faults as values, race
detector, pytest plugin.

A test drives the same task and the same commit as a live worker, so a service behaves as in its tests.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.testing.emitted import DeadLetter, Emitted, Out
    from tailrace.testing.exploring.report import ExploreReport, ScheduleDependentError
    from tailrace.testing.faults import (
        COMMIT,
        CRASH,
        END,
        REBALANCE,
        RELOAD,
        At,
        Clock,
        Fault,
        Idle,
        Item,
        Watermark,
    )
    from tailrace.testing.harness import Harness
    from tailrace.testing.memory_log import MemoryLog
    from tailrace.testing.replaying import ReplayReport
    from tailrace.testing.snapshot import HarnessSnapshot
    from tailrace.testing.system import AppView, System

__all__ = [
    "COMMIT",
    "CRASH",
    "END",
    "REBALANCE",
    "RELOAD",
    "AppView",
    "At",
    "Clock",
    "DeadLetter",
    "Emitted",
    "ExploreReport",
    "Fault",
    "Harness",
    "HarnessSnapshot",
    "Idle",
    "Item",
    "MemoryLog",
    "Out",
    "ReplayReport",
    "ScheduleDependentError",
    "System",
    "Watermark",
]

_MODULES = {
    "emitted": ("DeadLetter", "Emitted", "Out"),
    "harness": ("Harness",),
    "memory_log": ("MemoryLog",),
    "replaying": ("ReplayReport",),
    "snapshot": ("HarnessSnapshot",),
    "system": ("AppView", "System"),
    "exploring.report": ("ExploreReport", "ScheduleDependentError"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    # Imported late: pytest imports this package with the plugin in every run, even if no test uses it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF.get(name, 'faults')}"), name)
