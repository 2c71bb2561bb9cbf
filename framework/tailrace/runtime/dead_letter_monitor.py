"""Tells of dead letters while a service runs: the first of each kind with its traceback, then how many there are.

Theory. What is told of is what the log holds: the monitor reads the app's dead-letter topic from where it ended when the
run began. So it counts commits and no attempts, whichever process made them and however often a worker was started
again; and a replay or a rebuild, which writes nothing there, tells nothing again. One monitor serves the whole app: it
is in the process of the service, or of the supervisor of its workers.

It never takes long: of many letters it reads some in each look. What is left when the run ends is counted by offsets.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from tailrace.core.counting import counted
from tailrace.core.errors import HANDLER_FAILED, OffsetGoneError, TailraceError
from tailrace.history.dead_letters import letters
from tailrace.history.dead_letters.letters import DeadLetter
from tailrace.log.interface import Log, TopicPartition

_log = logging.getLogger("tailrace.dead_letters")

LOOK_S = 1.0
TELL_S = 10.0
_AT_ONCE = 500
_LOOK_BUDGET_S, _FINISH_BUDGET_S = 0.05, 5.0
"""For how long a look, and the last one, may read. The last one is before a process leaves that was told to."""
_MOST_KINDS = 50
"""Told of one by one. There are more where an app makes up classes of exceptions."""


class Kind(NamedTuple):
    """What letters have in common."""

    origin: str
    """The handler that failed; for a record that no handler was given, its topic."""
    why: str
    """The class of the exception, or the reason for which the record was refused."""

    def __str__(self) -> str:
        return f"{self.origin} ({self.why})"


_OTHERS = Kind("others", "")
"""Of kinds beyond those that are told of one by one, and what was not read."""


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
    """See the head of this file. ``look`` is called often, ``finish`` once no process of the app works any more.

    Raises:
        UnknownTopicError: The app has no dead-letter topic in this log.
        LogUnavailableError: The log does not answer.
    """

    def __init__(self, log: Log, app: str) -> None:
        self.counts: Counter[Kind] = Counter()
        """Of this run, as far as they were read."""
        self._log = log
        self._app = app
        self._topic = letters.topic_of(app)
        self._positions = {
            number: log.end_offset(self._topic, number) for number in range(log.partitions(self._topic))
        }
        places = {TopicPartition(self._topic, number): at for number, at in self._positions.items()}
        self._reader = log.reader(places)
        self._unread: deque[int] = deque()
        """Partitions that the last look had no time for: the next begins with them."""
        self._looked_s = self._told_s = time.monotonic()
        self._told: Counter[Kind] = Counter()
        """The counts when they were last told."""
        self._alone = 0
        """Of those since then, how many were told one by one."""

    def look(self) -> None:
        """Tell what there is to tell, if it is time. Raises nothing: what cannot be read now is read later."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        try:
            self._read(_LOOK_BUDGET_S)
        except TailraceError as error:
            _log.debug("the dead letters cannot be read now: %s", error)
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
        """Tell how many there were in all; the same by kind. What cannot be read is told, and not raised."""
        try:
            if self._read(_FINISH_BUDGET_S):
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

    def _read(self, budget_s: float) -> bool:
        """Read what is new, some of each partition in turn; whether something was left when the time was over."""
        until_s = time.monotonic() + budget_s
        unread = self._unread or deque(self._positions)
        self._unread = unread
        while unread and time.monotonic() < until_s:
            number = unread[0]
            more = True
            try:
                records, next_offset, more, _ = self._reader.fetch(self._topic, number, _AT_ONCE)
            except OffsetGoneError:  # retention was faster
                records, next_offset = [], self._log.start_offset(self._topic, number)
                self._reader.seek(self._topic, number, next_offset)
            for record in records:
                self._count(letters.read(number, record))
            self._positions[number] = next_offset
            unread.popleft()
            if more:
                unread.append(number)
        return bool(unread)

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
