"""How event time flows through an app: which watermarks each watermark is computed from.

Theory. An *operator* is an actor or a stateless function. Each operator has a watermark of its own in every
task. It is the minimum of the watermarks of its *sources*: the inputs that the operator handles itself and,
for an actor, the messages sent to it. Inputs of other operators do not affect it.

    source                              its watermark in a task
    ---------------------------------   -----------------------------------------------------------------
    a topic from outside                by the events of the partition, or as the topic declares
    a topic that the app also writes    published by its writers in all tasks, applied at a reader's position
    the topic behind ``repartition=``   the same; its only writer is the operator that forwards the records
    a stream                            the sources of the operators that write it: they run in the same step
    messages, from outside of a circle  published by the senders: one *channel* for each receiving actor
    ``watermark=False``                 none; not a source
    a circle                            none; not a source: see below

Operators that can reach each other form a *circle*. An input of an operator from its own circle is
*feedback*: the operator would wait for itself. Feedback is not a source and is never late. Three rules apply
to operators without a source, in this order:

1. An operator takes the sources of its circle.
2. A circle without sources follows the events of its topics.
3. Any other operator (of an app that reads only reference data) takes the sources of the whole app.

A *level* is the longest way from the sources to an operator, where a circle counts as one. Timers of one
instant fire in the order of levels, and at the end of input the levels rise one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.core.declare.topic import Edge, WatermarkKind
from tailrace.core.records import CHANNEL


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator as it is declared. ``sends`` are the names of actors."""

    name: str
    takes: tuple[Edge[Any, Any], ...]
    emits: frozenset[Edge[Any, Any]]
    sends: frozenset[str]
    gets_messages: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """A topic that is read. ``follows``: it declares no watermark, so it follows its writers in the app."""

    edge: Edge[Any, Any]
    watermark: WatermarkKind
    follows: bool
    is_broadcast: bool = False
    """Its takers keep reference data: their event time concerns no other operator."""


@dataclass(slots=True)
class Flow:
    """The flow of an app, by the names of operators, topics and channels.

    - ``streamed``: for each operator, the operators that reach it by streams, and itself.
    - ``kinds``: the kinds of watermark of the inputs, as changed by the flow.
    - ``feedback``: for each operator, the topics that come to it from its own circle.
    - ``writers``: for each published topic or channel, the operators whose watermarks it follows.
    - ``following``, ``reach``: for each operator, those directly after it, and all that it can reach.
    """

    sources: dict[str, frozenset[str]]
    levels: dict[str, int]
    streamed: dict[str, frozenset[str]]
    kinds: dict[str, WatermarkKind]
    feedback: dict[str, tuple[str, ...]]
    writers: dict[str, tuple[str, ...]]
    channels: tuple[str, ...]
    following: Mapping[str, Collection[str]]
    reach: Mapping[str, Collection[str]]
    circles: tuple[tuple[str, ...], ...] = field(default=())
    together: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """For each operator, itself, and if it is ordered, those that are connected with it by streams."""
    stages: dict[str, int] = field(default_factory=dict[str, int])
    """The levels, but of ordered operators that are connected by streams one: at the end of input they end together."""


def find_flow(operators: Sequence[Operator], inputs: Iterable[Input], inbox: str) -> Flow:
    """Compute the flow of an app; see the head of this file. ``inbox``: the topic for messages."""
    return _Finder(operators, inputs, inbox).flow()


class _Finder:
    def __init__(self, operators: Sequence[Operator], inputs: Iterable[Input], inbox: str) -> None:
        self._operators = {one.name: one for one in operators}
        self._inputs = {one.edge: one for one in inputs}
        self._inbox = inbox
        self._writers: dict[Edge[Any, Any], list[str]] = {}
        self._senders: dict[str, list[str]] = {}
        for one in operators:
            for edge in one.emits:
                self._writers.setdefault(edge, []).append(one.name)
            for actor in one.sends:
                self._senders.setdefault(actor, []).append(one.name)
        self._next = {one.name: self._followers(one) for one in operators}
        self._reach = {name: reached(name, self._next) for name in self._operators}
        self._by_events: set[Edge[Any, Any]] = set()

    def _followers(self, operator: Operator) -> set[str]:
        """The operators directly after one."""
        taken = {one.name for one in self._operators.values() if operator.emits.intersection(one.takes)}
        return taken | {name for name in operator.sends if name in self._operators}

    def _circle(self, name: str) -> frozenset[str]:
        """The operators that ``name`` can reach and is reached by, itself included."""
        back = {other for other in self._reach[name] if name in self._reach[other]}
        return frozenset(back | {name})

    def flow(self) -> Flow:
        """Find everything."""
        sources = self._all_sources()
        kinds: dict[str, WatermarkKind] = {one.edge.name: self._kind(one) for one in self._inputs.values()}
        writers = {
            edge.name: tuple(sorted(names))
            for edge, names in self._writers.items()
            if not edge.is_stream and kinds.get(edge.name) != "none"
        }
        channels = {
            self._channel(name): tuple(sorted(found))
            for name in self._operators
            if (found := self._outer_senders(name))
        }
        circles = {self._circle(name) for name in self._operators if name in self._reach[name]}
        return Flow(
            sources=sources,
            levels=levels_of(self._next, self._reach),
            streamed=self._streamed(),
            kinds=kinds,
            feedback={
                name: tuple(sorted(one.name for one in operator.takes if self._is_feedback(one, name)))
                for name, operator in self._operators.items()
            },
            writers=writers | channels,
            channels=tuple(sorted(channels)),
            following=self._next,
            reach=self._reach,
            circles=tuple(sorted(tuple(sorted(one)) for one in circles)),
        )

    def _follows(self, edge: Edge[Any, Any]) -> bool:
        """Whether an input follows its writers within the app."""
        one = self._inputs.get(edge)
        return one is not None and one.follows and edge in self._writers and edge not in self._by_events

    def _is_feedback(self, edge: Edge[Any, Any], reader: str) -> bool:
        return self._follows(edge) and any(one in self._reach[reader] for one in self._writers[edge])

    def _kind(self, one: Input) -> WatermarkKind:
        if not self._follows(one.edge):
            return one.watermark
        readers = [op.name for op in self._operators.values() if one.edge in op.takes]
        # A topic that is feedback to all of its takers holds none of them back.
        return "none" if all(self._is_feedback(one.edge, name) for name in readers) else "upstream"

    def _outer_senders(self, actor: str) -> list[str]:
        """The operators outside of its circle that send messages to an actor."""
        return [one for one in self._senders.get(actor, ()) if one not in self._reach[actor]]

    def _channel(self, actor: str) -> str:
        return f"{self._inbox}{CHANNEL}{actor}"

    def _all_sources(self) -> dict[str, frozenset[str]]:
        found = self._found_sources()
        bare = {self._circle(name) for name in self._operators if not found[name]}
        for circle in bare:
            taken = {edge for name in circle for edge in self._operators[name].takes}
            if not any(found[name] for name in circle):
                self._by_events |= {edge for edge in taken if self._follows(edge)}
        if self._by_events:
            found = self._found_sources()
        everything = frozenset[str]().union(*found.values()) - {
            one.edge.name for one in self._inputs.values() if one.is_broadcast
        }
        return {
            name: own or frozenset[str]().union(*(found[one] for one in self._circle(name))) or everything
            for name, own in found.items()
        }

    def _found_sources(self) -> dict[str, frozenset[str]]:
        found = {name: self._own_sources(one) for name, one in self._operators.items()}
        while True:  # streams may follow one another
            before = dict(found)
            for name, one in self._operators.items():
                for edge in one.takes:
                    if edge.is_stream:
                        found[name] = found[name].union(*(found[w] for w in self._writers.get(edge, ())))
            if found == before:
                return found

    def _own_sources(self, operator: Operator) -> frozenset[str]:
        topics = {
            edge.name
            for edge in operator.takes
            if not edge.is_stream
            and self._inputs[edge].watermark != "none"
            and not self._is_feedback(edge, operator.name)
        }
        if operator.gets_messages and self._outer_senders(operator.name):
            topics.add(self._channel(operator.name))
        return frozenset(topics)

    def _streamed(self) -> dict[str, frozenset[str]]:
        before = {
            name: {writer for edge in one.takes if edge.is_stream for writer in self._writers.get(edge, ())}
            for name, one in self._operators.items()
        }
        return {name: reached(name, before) | {name} for name in self._operators}


def levels_of(
    following: Mapping[str, Collection[str]], reach: Mapping[str, Collection[str]]
) -> dict[str, int]:
    """For each operator, the longest way to it, where operators that reach each other count as one."""
    levels: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in levels:
            circle = {name, *(other for other in reach[name] if name in reach[other])}
            before = {
                one for one, after in following.items() if one not in circle and not circle.isdisjoint(after)
            }
            found = 1 + max(map(level, before), default=-1)
            levels.update(dict.fromkeys(circle, found))
        return levels[name]

    for name in following:
        level(name)
    return levels


def reached(start: str, following: Mapping[str, Collection[str]]) -> frozenset[str]:
    """The operators that one can reach; itself only if it is part of a circle."""
    seen: set[str] = set()
    waiting = list(following[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += following[name]
    return frozenset(seen)
