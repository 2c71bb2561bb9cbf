"""Logs dead letters while a service runs: the first of each kind with its traceback, then their number.

Theory. The monitor reads the app's dead-letter topic from its end at the start of the run. So it counts committed letters,
not attempts, whichever process wrote them and however often a worker was restarted. A replay or a rebuild writes no dead
letters, so it logs none. There is one monitor for the whole app, in the process of the service or of the supervisor.

Of many letters, a look reads the next ``_AT_ONCE`` of each partition. Letters not yet read at the end of the run
are counted by their offsets.

A look must not wait for a transaction that hides letters: it may be that of this process, which cannot commit meanwhile. So looks
use a live reader, which never waits. At the end of the run another reader, which does, reads what is left.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tailrace.core.counting import counted
from tailrace.core.errors import HANDLER_FAILED, OffsetGoneError, TailraceError
from tailrace.core.names import dead_letters_of
from tailrace.history.dead_letters import letters
from tailrace.history.dead_letters.letters import DeadLetter
from tailrace.log.interface import Reader, ServiceLog, TopicPartition

_log = logging.getLogger("tailrace.dead_letters")

TELL_S = 10.0
_AT_ONCE = 100
_FINISH_S = 5.0
"""Limit of the reading time at the end of the run."""
_MOST_KINDS = 50
"""Limit of the kinds that are logged one by one. An app that creates classes of exceptions has more."""


class Kind(NamedTuple):
    """The properties by which letters are counted."""

    origin: str
    """The handler that failed. For a record that was not given to a handler, its topic."""
    why: str
    """The class of the exception, or the reason for which the record was refused."""

    def __str__(self) -> str:
        return f"{self.origin} ({self.why})"


_OTHERS = Kind("others", "")
"""Letters of further kinds, and letters that were not read."""


def kind_of(letter: DeadLetter) -> Kind:
    """What a letter is counted under."""
    origin = letter.handler or letter.topic or f"a timer of {letter.actor}"
    if letter.reason != HANDLER_FAILED:
        return Kind(origin, letter.reason)
    return Kind(origin, letter.error.partition(":")[0].partition(".")[0] or letter.reason)


def in_words(counts: Mapping[Kind, int], most: int = 5) -> str:
    """``Customer.bought (ValueError) 3, purchases (undecodable) 1``."""
    ordered = sorted(counts.keys() - {_OTHERS}, key=lambda kind: (-counts[kind], kind))
    said = [f"{kind} {counts[kind]:,}" for kind in ordered[:most]]
    if left := counts.get(_OTHERS, 0) + sum(counts[kind] for kind in ordered[most:]):
        said.append(f"others {left:,}")
    return ", ".join(said)


class DeadLetterMonitor:
    """See the head of this file. ``look`` is called each second, ``finish`` once all processes of the app have stopped.

    Raises:
        UnknownTopicError: The app has no dead-letter topic in this log.
        LogUnavailableError: The log does not answer.
    """

    def __init__(self, log: ServiceLog, app: str, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[Kind] = Counter()
        """Of this run, as far as they were read."""
        self._log = log
        self._app = app
        self._topic = dead_letters_of(app)
        self._positions = {
            number: log.end_offset(self._topic, number) for number in range(log.partitions(self._topic))
        }
        self._monotonic_s = monotonic_s
        self._reader: Reader = log.live_reader()
        for number, offset in self._positions.items():
            self._reader.seek(self._topic, number, offset)
        self._told_s = monotonic_s()
        self._told: Counter[Kind] = Counter()
        """The counts when they were last logged."""
        self._alone = 0
        """The number of letters since then that were logged one by one."""

    def look(self) -> None:
        """Log new letters. Raises nothing: letters that cannot be read now are read later."""
        try:
            self._read(waits=False)
        except TailraceError as error:
            _log.debug("the dead letters cannot be read now: %s", error)
        now_s = self._monotonic_s()
        if now_s - self._told_s < TELL_S:
            return
        new = self.counts - self._told
        if new.total() > self._alone:
            message = "%s went to the dead letters in the last %.0f s: %s"
            extra = {"app": self._app, "events": new.total(), "in_this_run": self.counts.total()}
            _log.warning(
                message, counted(new.total(), "event"), now_s - self._told_s, in_words(new), extra=extra
            )
        self._told, self._told_s, self._alone = self.counts.copy(), now_s, 0

    def finish(self) -> Counter[Kind]:
        """Log the total number and return it by kind. A failure to read is logged, not raised."""
        try:
            self._reader.close()
            self._reader = self._log.reader(
                {TopicPartition(self._topic, number): at for number, at in self._positions.items()}
            )
            until_s = self._monotonic_s() + _FINISH_S
            while (more := self._read(waits=True)) and self._monotonic_s() < until_s:
                pass
            if more:
                ends = {number: self._log.end_offset(self._topic, number) for number in self._positions}
                self.counts[_OTHERS] += sum(ends[number] - at for number, at in self._positions.items())
        except TailraceError as error:
            _log.warning("not all dead letters of this run could be counted: %s", error, extra=self._about())
        self._reader.close()
        if total := self.counts.total():
            message = "%s went to the dead letters in this run: %s"
            extra = {**self._about(), "events": total}
            _log.warning(message, counted(total, "event"), in_words(self.counts), extra=extra)
        return self.counts

    def _about(self) -> dict[str, object]:
        return {"app": self._app, "see": f"tailrace dead-letters list {self._app}"}

    def _read(self, *, waits: bool) -> bool:
        """Read what is new, some of each partition. Returns whether there may be more."""
        left = False
        for number in self._positions:
            more = True
            try:
                records, next_offset, more, _ = self._reader.fetch(self._topic, number, _AT_ONCE)
                more = more and (waits or bool(records))  # the rest is still to arrive
            except OffsetGoneError:  # retention was faster
                records, next_offset = [], self._log.start_offset(self._topic, number)
                self._reader.seek(self._topic, number, next_offset)
            for record in records:
                self._count(letters.read(self._app, number, record))
            self._positions[number] = next_offset
            left = left or more
        return left

    def _count(self, letter: DeadLetter) -> None:
        kind = kind_of(letter)
        if kind not in self.counts:
            if len(self.counts) >= _MOST_KINDS:
                kind = _OTHERS
            else:
                self._tell_first(kind, letter)
        self.counts[kind] += 1

    def _tell_first(self, kind: Kind, letter: DeadLetter) -> None:
        self._alone += 1
        said = {
            "app": self._app,
            "id": letter.id,
            "reason": letter.reason,
            "handler": letter.handler,
            "topic": letter.topic,
            "partition": letter.origin_partition,
            "offset": letter.origin_offset,
            "timer": letter.timer,
            "key": letter.key,
            "traceback": letter.traceback,
        }
        _log.warning(
            "%s to the dead letters, the first of %s in this run: %s",
            "a record goes" if letter.topic is not None else "a timer goes",
            kind,
            letter.error,
            extra={name: value for name, value in said.items() if value is not None},
        )
