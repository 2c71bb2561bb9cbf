"""The old version handles what is under way when it has been stopped, and reads no more of its inputs from outside.

A rebuild in stages knows no messages that old code has sent: at the moment at which the new code takes over, none may be left. Nor may
a task be within a drain, which other code may divide otherwise.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.stages import own_inputs
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.upgrades import Upgrade
from tailrace.log.interface import Fetch, Reader
from tailrace.log.opening import open_log
from tailrace.runtime.host import Host
from tailrace.runtime.inputs import WatchedReader
from tailrace.runtime.options import ServiceOptions


class _OwnInputs(WatchedReader):
    """A reader for which inputs from outside have ended."""

    def __init__(self, reader: Reader, own: frozenset[str]) -> None:
        super().__init__(reader)
        self._own, self._positions = own, dict[tuple[str, int], int]()

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        """See ``Reader.seek``."""
        self._positions[topic, partition] = offset
        super().seek(topic, partition, offset)

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        """See ``Reader.fetch``."""
        if topic in self._own:
            return super().fetch(topic, partition, max_records)
        return Fetch([], self._positions[topic, partition], unread=False, idle=True)


class _Draining(Host):
    """A process of the version that was stopped."""

    def _await_turn(self) -> ServiceOptions:
        return self.options

    def check_version(self) -> Upgrade | None:
        """It may run."""
        return None

    def _live_reader(self) -> Reader:
        kept = {self.plan.changelog_topic, *own_inputs(self.plan)}
        return _OwnInputs(self.log.live_reader(), frozenset(kept))


def drain(plan: Plan, log: str, reference: str, *, messages: bool) -> None:
    """End what the last commits have left within a drain; with ``messages``, handle what the app has sent to itself."""
    with closing(open_log(log)) as opened:
        history = AppHistory(plan, opened)
        cuts = [history.committed(number).cut for number in range(plan.partitions)]
    if messages or any(tape.decode_cut(one).within_drain for one in cuts if one):
        with TemporaryDirectory(prefix="tailrace-drain-") as state:
            options = ServiceOptions(app=reference, log=log, state=Path(state), until_end=True)
            _Draining(options, plan).run()
