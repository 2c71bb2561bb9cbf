"""Processes of an app during an upgrade: the new version waits for its turn, the old one notices that its time is over.

``history.reading.upgrades`` has the steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import LogUnavailableError, ReplacedVersionError
from tailrace.history.reading.generations import at_generation, folder_of
from tailrace.history.reading.upgrades import Upgrade, check_version, last_upgrade
from tailrace.history.status.last_failure import note_failure
from tailrace.log.interface import StoredLog
from tailrace.runtime.companions import Companion
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import check_options
from tailrace.runtime.restore import Restore
from tailrace.runtime.standbys import Standby
from tailrace.runtime.states import States
from tailrace.runtime.worker import system_clock

_log = logging.getLogger("tailrace.service")
_standbys_log = logging.getLogger("tailrace.standbys")
_LOOK_S = 2.0
_WHILE_OPEN_S = 0.2
"""While an upgrade is open."""
_WAIT_S = 0.05


class Warming:
    """Copies of the state that a new version begins with, while its process waits. ``close`` before a task opens its state.

    An upgrade writes this state into a changelog of its own (``history.reading.generations``). A process that waits follows it as a
    standby does, so that at its turn little is left to restore. It does not know yet which tasks it will own, so it follows all.
    Copies are never needed: if one fails, all are closed, and the tasks are restored from the log.
    """

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
            _standbys_log.warning(
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


class UpgradeWatch(Companion):
    """Ends the process, with a last commit, when its version is replaced. All processes look at the same time."""

    name = "looking for upgrades"
    essential = True
    _looked = 0.0
    _every_s = _LOOK_S

    def look(self) -> None:
        """Look every two seconds, and more often while an upgrade is open. Raises ReplacedVersionError."""
        now = time.time() // self._every_s
        if now != self._looked and self.host is not None:
            with suppress(LogUnavailableError):
                found = self.host.check_version()
                self._every_s = _WHILE_OPEN_S if found is not None and found.is_open else _LOOK_S
            self._looked = time.time() // self._every_s


@contextmanager
def noting_failures(options: ServiceOptions, plan: Plan, log: StoredLog) -> Generator[None]:
    """Note a failure to begin with the state of an upgrade, whose command waits for that. Other failures to start are not noted:
    nothing is to be written for a process that was started by mistake.
    """
    try:
        yield
    except Exception as error:
        if options.replaced is not None:
            note_failure(log, plan.app, error)
        raise


def await_upgrade(options: ServiceOptions, plan: Plan, log: StoredLog) -> ServiceOptions:
    """The options of a process by the last upgrade of its app. The new version waits until the old one has ended.

    Raises:
        OptionError: The log cannot honour an option. Nothing is asked before, as a broker may take long to answer.
        ReplacedVersionError: This version is not the one to run, or the upgrade was given up meanwhile.
    """
    check_options(log, options)
    with closing(Warming(options, plan, log)) as warming:
        found = _awaited(plan, log, warming)
    if found is None:
        return options
    options = replace(options, downgrade=options.downgrade or (log.moves_tasks and found.rollback))
    if found.step == "done":
        return options
    start = f"{found.snapshots}#{found.snapshot}"
    return replace(
        options, from_snapshot=start, replace_state=True, replaced=found.before, change_inputs=True
    )


def _awaited(plan: Plan, log: StoredLog, warming: Warming) -> Upgrade | None:
    """The upgrade to this version, if it has come to its turn; None: there is none."""
    waited = False
    while True:
        found = last_upgrade(log, plan.app)
        check_version(plan, found)
        step = found.step if found is not None and found.new == plan.version else None
        if waited and step not in ("begun", "fenced", "ready", "done"):
            raise ReplacedVersionError(
                f"the upgrade of {plan.app!r} to version {plan.version!r} was given up while this process waited for it",
                hint="Nothing was changed. Start the old version, or the upgrade again.",
            )
        if found is None or step not in ("begun", "fenced"):
            break
        if not waited:
            _log.info("waits for the upgrade from version %r", found.old, extra={"app": plan.app})
        waited = True
        if not warming.work(found, _WAIT_S):
            time.sleep(_WAIT_S)
    return found if step in ("ready", "done") else None
