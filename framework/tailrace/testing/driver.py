"""What drives services in a test: input, time, crashes and the end, for one app or for several on one log.

Every verb does what it is for and then lets everything happen that follows from it: takes and commits go round until nothing
moves any more, in any app. Where commits are left to the test (``commit_every="manual"``), it is taken as far as can be done
without one.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import cycle, groupby
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tailrace.core.declare.plan import InputPlan
from tailrace.core.declare.topic import Topic
from tailrace.core.durations import duration, to_ms
from tailrace.core.errors import TailraceError, UsageError
from tailrace.core.records import Output
from tailrace.runtime.replaying import seldom_collected
from tailrace.testing import faults
from tailrace.testing.emitted import Emitted, Out
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.service import Service

E = TypeVar("E")


class ServiceInput(NamedTuple):
    """An input of one of the services. ``written_by`` names the app of another that writes it."""

    service: Service
    plan: InputPlan
    written_by: str | None

    @property
    def follows(self) -> bool:
        """Whether what it is told of event time comes from the apps that are driven here."""
        return self.plan.own or self.written_by is not None


class Driver:
    """Drives services over one log. Has no services until ``_drive``; a context manager; ``close`` does the same."""

    log: MemoryLog
    """The log, for what is not offered here."""

    def __init__(self, *, now_ms: int | datetime, manual: bool) -> None:
        self._now_ms = to_ms(now_ms)
        self._manual = manual
        self._services: Sequence[Service] = ()
        self._inputs: Sequence[ServiceInput] = ()
        self._end_order: Sequence[Collection[Service]] = ()
        self._visible: list[Out] = []
        self._told = 0
        self._ended = False
        self._closed = False

    def _drive(self, services: Sequence[Service], end_order: Sequence[Collection[Service]]) -> None:
        """Drive these from now on. ``end_order``: those whose inputs end together, those that end first before others."""
        self._services = services
        self._end_order = end_order
        writers = [(one.plan.app, written_topics(one)) for one in services]
        self._inputs = [
            ServiceInput(
                service,
                plan,
                next((app for app, to in writers if app != service.plan.app and plan.name in to), None),
            )
            for service in services
            for plan in service.plan.inputs
        ]

    @property
    def now(self) -> int:
        """Where the clock stands, in milliseconds since the epoch."""
        return self._now_ms

    # --- input

    def send(self, topic: Topic[E, Any], *events: E, timestamp_ms: int | datetime | None = None) -> Emitted:
        """Append events to a topic, and let everything happen that follows from them; returns what was emitted.

        Their records bear ``timestamp_ms``, the clock's time unless given. An event without a key is appended without
        one. Raises UsageError for a topic that no handler takes, or an event that is not of its type.
        """
        records = self._records(topic, events, timestamp_ms)
        with self._driving():
            self.log.append_all(records)
            self._settle()
        return self._news()

    def send_raw(
        self,
        topic: Topic[Any, Any],
        value: bytes | None,
        key: bytes | None = None,
        timestamp_ms: int | datetime | None = None,
        *,
        partition: int | None = None,
    ) -> Emitted:
        """Append a record as it is, such as one that cannot be decoded; otherwise as ``send``.

        It goes where its key says, or to ``partition``, as a producer with another partitioner would have it.
        """
        self._open_inputs(topic)
        at_ms = self._timestamp(timestamp_ms)
        with self._driving():
            self.log.append(topic.name, key, value, at_ms, partition=partition)
            self._settle()
        return self._news()

    # --- time

    def advance_watermark(self, to: int | datetime, *, topic: Topic[Any, Any] | None = None) -> Emitted:
        """Raise the watermark of every input from outside, in every partition, as if its producers had published it.

        With ``topic``, of that input only. What the app writes and reads itself follows, commit by commit; so does what
        one app of a system writes and another reads with ``watermark="upstream"``.

        Raises UsageError if there is no input from outside that has a watermark, or ``topic`` is not one.
        """
        to_watermark_ms = to_ms(to)
        if topic is None:
            raised = [one for one in self._inputs if one.plan.moves and not one.follows]
            if not raised:
                raise UsageError(
                    f"no input of {self._shown} has a watermark that comes from outside",
                    mend="Declare one without watermark=False.",
                )
        else:
            raised = self._counting(topic)
        with self._driving():
            self._settle()
            self._read_clocks()
            for service, plan, _ in raised:
                service.raise_watermark(plan.index, to_watermark_ms)
            self._settle()
        return self._news()

    def advance_clock(self, to: int | datetime) -> Emitted:
        """Set the clock. Timers of processing time fire, and inputs fall idle, as they are due.

        An input from outside falls idle as in a live service: when nothing has come for its ``idle_after``, 60 s unless
        declared. What only follows from idle inputs holds nobody back any more. The clock may be set back, as clocks
        sometimes are; handlers never see it go back.
        """
        self._now_ms = to_ms(to)
        with self._driving():
            self._settle()
        return self._news()

    def advance_clock_by(self, time: str | int | timedelta) -> Emitted:
        """Move the clock on, by milliseconds or a duration such as ``"1s"``; otherwise as ``advance_clock``."""
        return self.advance_clock(self._now_ms + duration(time))

    def fall_idle(self, topic: Topic[Any, Any]) -> Emitted:
        """Have an input fall idle now, in every partition: its watermark holds nobody back until it wakes.

        Its next record wakes it, ``wake``, or for a topic that the app writes itself what its tasks publish next.
        """
        found = self._open_inputs(topic)
        with self._driving():
            self._settle()
            self._read_clocks()
            for service, plan, _ in found:
                service.fall_idle(plan.index)
            self._settle()
        return self._news()

    def wake(self, topic: Topic[Any, Any]) -> Emitted:
        """Have an idle input count again in every partition, as its next record would: its watermark stands where it stood.

        It falls idle again when nothing comes for its ``idle_after`` from now on. Nothing happens where it is not idle.

        Raises UsageError for an input that has no watermark, or follows what its writers publish.
        """
        found = self._counting(topic)
        with self._driving():
            self._settle()
            self._read_clocks()
            for service, plan, _ in found:
                service.wake(plan.index)
            self._settle()
        return self._news()

    def end_of_input(self) -> Emitted:
        """End all inputs: once all messages are delivered, the watermark rises to the latest timer then pending.

        Timers set meanwhile for later stay pending, and so do those of processing time. Commits, whatever
        ``commit_every`` says. Nothing can be sent afterwards.
        """
        with self._driving():
            self._commit_until_quiet()
            self._read_clocks()
            for together in self._end_order:
                self._end(together)
            self._ended = True
        return self._news()

    # --- a list of all that

    def run(self, items: Iterable[faults.Item]) -> Emitted:
        """Feed a list of events and faults, one after the other; returns what became visible in all of it.

        Unlike ``send``, a list commits only where it says so (COMMIT, RELOAD, REBALANCE, END, or by
        ``commit_every``), and at its end unless commits are manual. So a CRASH has something to lose.
        """
        start, manual = self._told, self._manual
        self._manual = True
        try:
            for topic, group in groupby(items, _topic_of):
                if topic is not None:
                    self.send(topic, *(item[1] for item in group if isinstance(item, tuple)))
                    continue
                for item in group:
                    self._do(item)
        finally:
            self._manual = manual
        with self._driving():
            self._settle()
        self._told = start
        return self._news()

    def _do(self, item: faults.Item) -> None:
        match item:
            case faults.At(timestamp_ms, topic, event):
                self.send(topic, event, timestamp_ms=timestamp_ms)
            case faults.Clock(now_ms):
                self.advance_clock(now_ms)
            case faults.Watermark(watermark_ms, topic):
                self.advance_watermark(watermark_ms, topic=topic)
            case faults.Idle(topic):
                self.fall_idle(topic)
            case faults.Wake(topic):
                self.wake(topic)
            case faults.CRASH:
                self.crash()
            case faults.COMMIT:
                self.commit()
            case faults.RELOAD:
                self._restart(keep_state=True)
            case faults.REBALANCE:
                self._restart(keep_state=False)
            case faults.END:
                self.end_of_input()
            case _:
                raise UsageError(
                    f"{item!r} is no item of a run",
                    mend="Give (topic, event) pairs, and faults from tailrace.testing.",
                )

    # --- life

    def commit(self) -> Emitted:
        """Take what there is to take, and commit it; returns what became visible.

        It is what ``commit_every="manual"`` is for. Messages that became visible are handled by the next call.
        """
        with self._driving():
            for one in self._running:
                one.take_all()
            for one in self._running:
                one.commit()
        return self._news()

    def crash(self) -> None:
        """Kill what is driven: what was not committed is gone. A call that raises an error from a service does it, too."""
        for one in self._services:
            one.kill()

    def recover(self) -> None:
        """Start what is down: restore every partition. Every call does so where it is needed."""
        if self._closed:
            raise UsageError(f"the {self._kind} is closed", mend="Use it inside of its with block.")
        for one in self._running:
            if not one.up:
                with self._killing():
                    one.start()

    def close(self) -> None:
        """Let go of everything. May be called again."""
        if not self._closed:
            self._closed = True
            for one in self._services:
                one.close()

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- how

    @property
    def _kind(self) -> str:
        return type(self).__name__.lower()

    @property
    def _shown(self) -> str:
        names = ", ".join(repr(one.plan.app) for one in self._services)
        return f"the app {names}" if len(self._services) == 1 else f"the apps {names}"

    @property
    def _running(self) -> Sequence[Service]:
        """The services that are up, or start again with the next call."""
        return self._services

    def _read_clock(self) -> int:
        return self._now_ms

    def _read_clocks(self) -> None:
        for one in self._running:
            one.read_clock()

    def _records(
        self, topic: Topic[Any, Any], events: Iterable[Any], timestamp_ms: int | datetime | None
    ) -> list[Output]:
        self._open_inputs(topic)
        name, encode, encode_key, types = topic.name, topic.encode, topic.encode_key, topic.types
        at_ms = self._timestamp(timestamp_ms)
        records: list[Output] = []
        for event in events:
            if type(event) not in types:
                raise UsageError(
                    f"{type(event).__name__} was sent to {name!r}, which holds {topic.type_name}",
                    mend="Send events of the declared type, or bytes by send_raw.",
                )
            try:
                key = encode_key(event)
            except (TailraceError, AttributeError, TypeError, ValueError):
                key = None  # as from a producer that sends it all the same
            records.append(Output(name, key, encode(event), at_ms))
        return records

    def _open_inputs(self, topic: object) -> list[ServiceInput]:
        """The inputs that read a topic, which has not ended."""
        if not isinstance(topic, Topic):
            raise UsageError(
                f"{topic!r} is no topic", mend="Give a topic of the app, as app.topic returned it."
            )
        if not any(one.plan.topics.get(topic.name) is topic for one in self._services):
            names = {name for one in self._services for name in one.plan.outputs}
            raise UsageError(
                f"the topic {topic.name!r} of the app {topic.app!r} is none of {self._shown}",
                mend=f"Its topics are {', '.join(sorted(names)) or 'none'}.",
            )
        found = [one for one in self._inputs if one.plan.name == topic.name]
        if not found:
            raise UsageError(
                f"no handler of {self._shown} takes the topic {topic.name!r}",
                mend=f"Its inputs are {', '.join(sorted({one.plan.name for one in self._inputs})) or 'none'}.",
            )
        if self._ended:
            raise UsageError(f"the input {topic.name!r} has ended", mend="Send before end_of_input.")
        return found

    def _counting(self, topic: Topic[Any, Any]) -> list[ServiceInput]:
        """The inputs that read a topic and have a watermark that comes from outside."""
        inputs = self._open_inputs(topic)
        found = [one for one in inputs if one.plan.moves and not one.follows]
        if found:
            return found
        writer = next((one.written_by or one.service.plan.app for one in inputs if one.follows), None)
        if writer is not None:
            raise UsageError(
                f"the watermark of {topic.name!r} follows what the app {writer!r} writes to it",
                mend="Raise the watermarks of the inputs that come from outside, or give no topic: then all of them rise.",
            )
        raise UsageError(
            f"the input {topic.name!r} has no watermark",
            mend="It is declared with watermark=False, or feeds its own writers: nobody waits for it.",
        )

    def _timestamp(self, given: int | datetime | None) -> int:
        return self._now_ms if given is None else to_ms(given)

    def _settle(self) -> None:
        """Let everything happen that can: with commits, or up to where one would be needed."""
        if self._manual:
            for one in self._running:
                one.take_all()
        else:
            self._commit_until_quiet()

    def _commit_until_quiet(self) -> None:
        """Take and commit, app after app, until nothing moves: what one commits may be what another waits for."""
        running, quiet = self._running, 0
        for one in cycle(running):
            # One that has committed is quiet now, and all others are asked once more.
            quiet = 1 if one.commit_until_quiet() else quiet + 1
            if quiet == len(running):
                return

    def _end(self, together: Collection[Service]) -> None:
        """End the inputs of services, level by level."""
        for level in range(max(one.plan.levels for one in together)):
            for service in together:
                service.end_inputs(level)
            self._commit_until_quiet()
            for service in together:
                service.finish(level)
            self._commit_until_quiet()

    def _restart(self, *, keep_state: bool) -> None:
        with self._driving():
            for one in self._running:
                one.take_all()
            for one in self._running:
                one.stop(keep_state=keep_state)
            for one in self._running:
                one.start()

    def _news(self) -> Emitted:
        news = Emitted(self._visible[self._told :])
        self._told = len(self._visible)
        return news

    @contextmanager
    def _driving(self) -> Generator[None]:
        """Drives the services: they are up before, and down if anything fails."""
        self.recover()
        with self._killing(), seldom_collected():
            yield

    @contextmanager
    def _killing(self) -> Generator[None]:
        try:
            yield
        except BaseException:
            for one in self._services:
                one.kill()
            raise


def written_topics(service: Service) -> frozenset[str]:
    """The topics that a service's handlers may write, or its late events go to."""
    plan = service.plan
    emitted = {edge.name for one in plan.operators for edge in one.emits if not edge.is_stream}
    return frozenset(emitted | {one.late_topic.name for one in plan.inputs if one.late_topic is not None})


def _topic_of(item: faults.Item) -> Topic[Any, Any] | None:
    """The topic of an event, by which neighbours are sent together; None for anything else."""
    return item[0] if isinstance(item, tuple) and len(item) == 2 else None
