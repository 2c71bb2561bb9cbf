"""Which version of an app may run: an upgrade must never let two versions continue one state.

Theory. The topic ``<app>.upgrades`` has one partition. Its last record says how far the last upgrade has come, and so
which processes may run. ``old`` and ``new`` are versions (``App(version=)``); a rollback is an upgrade back::

    last record   processes of old                 processes of new           what a kill of the command leaves
    none          run                              run                        nothing
    begun         run                              wait                       old runs, snapshots of new lie beside it
    fenced        commit and end; refused          wait                       nobody runs, until it is run again or given up
    ready         refused                          begin with ``snapshot``,   new runs; the same command notes ``done``
                                                   whose rows are in the
                                                   changelog ``generation``
    done          refused                          run                        new runs
    given up      run                              run; those that waited end old runs

A version that an earlier upgrade has replaced is refused all the time, unless the upgrade that is open leads to it, or a later one has
led back to it: each record has the list.

Invariants: nobody may commit between ``fenced`` and ``ready``; ``snapshot`` stands at the last commit of ``old``; from
``ready`` on there is no way back but another upgrade. A record
is written by the command alone, under the transactional id of the topic: a second command fences the first.

A process looks twice at its start, before it claims tasks and when it has them (see ``provenance.moves``), and every two
seconds while it runs, and five times per second while an upgrade is open, all processes at the same time. The command writes ``fenced``, and then waits until nobody owns a task. So one of the two sees the other.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import ReplacedVersionError
from tailrace.core.names import upgrades_of
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.stretches import decoding, last
from tailrace.log.interface import Log, Writer

UpgradeStep = Literal["begun", "fenced", "ready", "done", "given up"]


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """A record of ``<app>.upgrades``."""

    step: UpgradeStep
    id: str
    old: str
    new: str
    rollback: bool = False
    snapshots: str
    """URI of the snapshots that the upgrade makes."""
    code: str
    """A digest of the code of ``new``: an upgrade is continued by the same code."""
    before: int
    """The generation of the changelog that has the state of ``old``; see ``reading.generations``."""
    generation: int
    """The one that has the state of ``new``."""
    replaced: tuple[str, ...] = ()
    """The versions that earlier upgrades have replaced."""
    snapshot: str = ""
    """From ``ready`` on: the state of ``new``, and that of ``old`` at the same moment."""
    kept: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it has neither ended nor been given up."""
        return self.step not in ("done", "given up")

    @property
    def current(self) -> int:
        """The generation of the changelog that has the state of the app now."""
        return self.generation if self._has_led else self.before

    @property
    def version(self) -> str:
        """The version that has the state of the app now."""
        return self.new if self._has_led else self.old

    @property
    def replaced_now(self) -> tuple[str, ...]:
        """The versions that must not run any more."""
        found = {*self.replaced, self.old} if self._has_led else {*self.replaced}
        return tuple(sorted(found - {self.version}))

    @property
    def _has_led(self) -> bool:
        return self.step in ("ready", "done")


_upgrade = msgspec.json.Decoder(Upgrade)


def last_upgrade(log: Log, app: str, step: UpgradeStep | None = None) -> Upgrade | None:
    """The last record of an app's upgrades, or the last one of a step; None if there is none. Raises ForeignLogError."""
    topic = upgrades_of(app)
    if topic not in log.topics():
        return None
    found = last(log, topic, 0, lambda one: step is None or _decoded(one, topic).step == step)
    return None if found is None else _decoded(found, topic)


def _decoded(record: InputRecord, topic: str) -> Upgrade:
    with decoding(topic, record, "upgrade of the app", "Find who else writes to it."):
        return _upgrade.decode(record.value or b"")


def note_upgrade(writer: Writer, app: str, upgrade: Upgrade) -> None:
    """Add a record, in a commit of its own."""
    value, now_ms = msgspec.json.encode(upgrade), time.time_ns() // 1_000_000
    writer.append([Output(upgrades_of(app), None, value, now_ms)], 0)
    writer.commit()


def check_version(plan: Plan, found: Upgrade | None) -> None:
    """Check that the present version may run, or begin, by the last record. Raises ReplacedVersionError."""
    if found is None or (found.is_open and plan.version == found.new):
        return
    if found.step in ("fenced", "ready"):
        raise ReplacedVersionError(
            f"the app {plan.app!r} is being {'rolled back' if found.rollback else 'upgraded'} from version {found.old!r} to "
            f"{found.new!r}, and this is version {plan.version!r}",
            hint=f"Everything is committed. Start version {found.new!r}; it waits until it may run. If the upgrade was interrupted, "
            "run the same 'tailrace upgrade' again, or give it up with --cancel. When it was given up, start this version again.",
        )
    if plan.version in found.replaced_now:
        raise ReplacedVersionError(
            f"version {found.version!r} of the app {plan.app!r} has replaced version {plan.version!r}, which this is",
            hint="Start the new version, or return to this one with 'tailrace upgrade'.",
        )
