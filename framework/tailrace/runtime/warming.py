"""Copies of the state that a new version begins with, while its processes wait for their turn.

An upgrade writes this state into a changelog of its own (``history.reading.generations``). A process that waits follows it as a standby
does, so that at its turn little is left to restore. It does not know yet which tasks it will own, so it follows all. Copies are never
needed: if one fails, all are closed, and the tasks are restored from the log.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from tailrace.core.declare.plan import Plan
from tailrace.history.reading.generations import at_generation, folder_of
from tailrace.history.reading.upgrades import Upgrade
from tailrace.log.interface import StoredLog
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.restore import Restore
from tailrace.runtime.standbys import Standby
from tailrace.runtime.states import States
from tailrace.runtime.worker import system_clock

_log = logging.getLogger("tailrace.standbys")


class Warming:
    """The copies of the tasks of ``plan``. ``close`` before a task opens its state."""

    def __init__(self, options: ServiceOptions, plan: Plan, log: StoredLog) -> None:
        self._options, self._plan, self._log = options, plan, log
        self._followed: int | None = None
        """The generation."""
        self._standbys: list[Standby] = []
        self._opened = ExitStack()

    def work(self, upgrade: Upgrade, for_s: float) -> bool:
        """Follow the changelog of the new version for some time at most, if it is there. Returns whether there is more."""
        until_s = time.monotonic() + for_s
        try:
            if self._followed != upgrade.generation:
                self._open(upgrade.generation)
            while sum(one.step() for one in self._standbys):
                if time.monotonic() > until_s:
                    return True
        except Exception as error:  # noqa: BLE001  # a copy is never needed
            _log.warning(
                "no copy of the new state is kept while waiting: %s", error, extra={"app": self._plan.app}
            )
            self._followed = upgrade.generation
            self.close()
        return False

    def _open(self, generation: int) -> None:
        plan = at_generation(self._plan, generation)
        if plan.changelog_topic not in self._log.topics():
            return
        self.close()
        self._followed, options = generation, self._options
        folder = folder_of(options.state / plan.app, plan)
        states = States(folder, plan.app, 1, plan.partitions, options.memory_mib)
        reader = self._log.live_reader()
        self._opened.callback(reader.close)
        for number in range(plan.partitions):
            restore = Restore(plan, number, self._log, reader, states.take(number), system_clock)
            standby = Standby(restore, reader)
            self._opened.callback(standby.close)
            self._standbys.append(standby)

    def close(self) -> None:
        """Close the copies; what they have stays in the state folder."""
        self._standbys = []
        self._opened.close()
