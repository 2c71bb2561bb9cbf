"""In which order operators handle their events: as they arrive, or in the order of their event times.

Rules. An operator with two or more inputs must say which; any other one handles its events as they arrive. Inputs are the
topics and streams that it takes and the messages from outside of its circle, without reference data
(``watermark=False``) and feedback, which are handled on arrival in any case, and without streams that it alone feeds.

A stream's event is handled in the step that emits it, so operators that are connected by streams have one order, and, if
it is that of event time, one watermark: that of all of their sources together. Otherwise a receiver might have
to wait for an earlier event of another input, while the sender continues.

An event that waits has its time when it is taken, so a topic whose event time is the time of arrival is refused. It is read
from the log again after a restart, so a table is refused, too: its log may not have the event any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.declarations import Declarations
from tailrace.core.declare.flow import Flow, Operator, levels_of, reached
from tailrace.core.declare.topic import Edge, Topic
from tailrace.core.errors import DefinitionError
from tailrace.core.names import inbox_of
from tailrace.core.records import CHANNEL


def ordered_operators(app: Declarations, operators: Sequence[Operator], flow: Flow) -> frozenset[str]:
    """The names of the operators that handle their events in the order of event time. Raises DefinitionError."""
    declared = {one.name: _declared(app, one.name) for one in operators}
    for one in operators:
        inputs = _inputs(app, one, operators, flow)
        if len(inputs) > 1 and declared[one.name] is None and one.name in _own(app):
            raise _must_say(app, one.name, inputs)
    ordered: set[str] = set()
    for group in _connected(operators):
        names = [one.name for one in group if declared[one.name] == "event-time"]
        if not names:
            continue
        for one in group:
            if declared[one.name] == "arrival":
                raise DefinitionError(
                    f"{names[0]} handles its events in the order of event time and {one.name} as they arrive, but "
                    "they are connected by a stream",
                    hint="A stream's event is handled in the step that emits it. Give both the same order, or let "
                    "one emit to a topic that the other reads.",
                )
            _check_times(one, flow)
            _check_circle(app, one, operators, flow)
        ordered.update(one.name for one in group)
    return frozenset(ordered)


def join(operators: Sequence[Operator], ordered: frozenset[str], flow: Flow) -> None:
    """Let ordered operators that are connected by streams have the sources of all of them, and end together.

    Raises DefinitionError if they would wait for themselves.
    """
    following = {name: {*after} for name, after in flow.following.items()}
    flow.together = {name: frozenset((name,)) for name in following}
    for group in _connected(operators):
        names = frozenset(one.name for one in group)
        if names.isdisjoint(ordered):
            continue
        sources = frozenset[str]().union(*(flow.sources[name] for name in names))
        if len(names) > 1:
            _check_sources(names, sources, names.union(*(flow.reach[name] for name in names)), flow)
        for name in names:
            flow.sources[name], flow.together[name] = sources, names
            following[name] |= names - {name}
    flow.stages = levels_of(following, {name: reached(name, following) for name in following})


def _check_sources(group: frozenset[str], sources: frozenset[str], after: frozenset[str], flow: Flow) -> None:
    for source in sorted(sources):
        writers = sorted(after.intersection(flow.writers.get(source, ())))
        if writers:
            messages = source.rpartition(CHANNEL)[2] if CHANNEL in source else ""
            raise DefinitionError(
                f"{' and '.join(sorted(group))} handle their events in the order of event time and are connected by streams, so "
                f"they advance together, and only after {f'the messages to {messages}' if messages else repr(source)}. This comes from "
                f"{' and '.join(writers)}, which advances after them: all would wait without end",
                hint='Replace the stream by a topic that the other one reads, or give them order="arrival".',
            )


def _own(app: Declarations) -> set[str]:
    return {*app.actors, *app.functions}


def _declared(app: Declarations, name: str) -> str | None:
    cls = app.actors.get(name)
    return app.orders.get(name) if cls is None else declaration_of(cls).order


def _inputs(app: Declarations, one: Operator, operators: Sequence[Operator], flow: Flow) -> list[str]:
    """The names of the inputs of an operator whose order matters; a stream that it alone feeds belongs to the others."""
    of_others = {edge for other in operators if other is not one for edge in other.emits}
    taken = [edge for edge in one.takes if not edge.is_stream or edge in of_others]
    found = [edge.name for edge in taken if _is_input(edge, flow, one.name)]
    has_messages = f"{inbox_of(app.name)}{CHANNEL}{one.name}" in flow.sources[one.name]
    return [*found, "messages"] if has_messages else found


def _must_say(app: Declarations, name: str, inputs: Sequence[str]) -> DefinitionError:
    cls = app.actors.get(name)
    if cls is None:
        lines = [f"@app.process({', '.join(inputs)}, order={order!r})" for order in ("event-time", "arrival")]
    else:
        lines = [f"class {cls.__name__}(tr.Actor, order={order!r})" for order in ("event-time", "arrival")]
    ordered, arrival = (line.replace("'", '"') for line in lines)
    return DefinitionError(
        f"{name} has {len(inputs)} inputs, {' and '.join(inputs)}, and does not say in which order it handles their events",
        hint=f"{ordered}: in the order of event time, so that results do not depend on which input is read first. An event "
        "waits until every input has passed its time, or is idle: for their out_of_order, and for up to the "
        f"idle_after of a quiet one. {arrival}: each as it arrives, at once. A result may then differ from "
        "run to run where it depends on the order among the inputs.",
    )


def _check_times(one: Operator, flow: Flow) -> None:
    for edge in one.takes:
        if edge.is_table and _is_input(edge, flow, one.name):
            raise DefinitionError(
                f"{one.name} handles its events in the order of event time, and takes the table {edge.name!r}, of which the "
                "log may have deleted all but the last event of a key before its turn",
                hint=f"Keep the history of {edge.name!r} in a topic, and take that; or declare the table with "
                f'watermark=False, or {one.name} with order="arrival": then each value counts as soon as it arrives.',
            )
        is_arrival = isinstance(edge, Topic) and edge.settings.time_kind == "arrival"
        if is_arrival and _is_input(edge, flow, one.name):
            raise DefinitionError(
                f"{one.name} handles its events in the order of event time, but the event time of {edge.name!r} is the time "
                "of arrival",
                hint=f'Give {edge.name!r} an event time of its own, or {one.name} order="arrival".',
            )


def _check_circle(app: Declarations, one: Operator, operators: Sequence[Operator], flow: Flow) -> None:
    """Refuse feedback that was only found by names: code may name a topic, or a field like it, and never emit to it."""
    circle = next((names for names in flow.circles if one.name in names), ())
    cls = app.actors.get(one.name)
    if cls is not None and declaration_of(cls).operator and _declared(app, one.name) == "event-time":
        _check_inputs(one, operators, flow)
    for writer in (other for other in operators if other.name in circle):
        back = {edge.name for edge in writer.emits}.intersection(flow.feedback[one.name])
        back |= writer.sends.intersection((one.name,))
        if back and writer.name in _own(app) and writer.name not in app.emits:
            others = {*(edge.name for edge in writer.emits), *writer.sends} - back
            first = min(back)
            what = "messages" if first == one.name else repr(first)
            raise DefinitionError(
                f"{one.name} handles its events in the order of event time and takes {what}, and the code of {writer.name} has a name "
                f"that leads to {first}: what may come from {'itself' if writer is one else 'its own results'} has no place in that order",
                hint=f"If {writer.name} does not emit to it, list what it emits to: emits=[{', '.join(sorted(others))}]. If it does, "
                f"list it, too: emits=[{', '.join(sorted(others | back))}].",
            )


def _check_inputs(one: Operator, operators: Sequence[Operator], flow: Flow) -> None:
    """Refuse an operator of the library that needs an order, and takes what comes from its own results, also by streams."""
    senders = {name for other in operators for name in other.sends if other.name in flow.reach[name]}
    for name in sorted(flow.streamed[one.name]):
        back = [*map(repr, flow.feedback[name]), *["messages"] * (name in senders)]
        if back:
            raise DefinitionError(
                f"{one.name} handles its events in the order of event time, and {back[0]}, which comes from its own results, has no "
                "place in that order",
                hint=f"Let {name} take what does not depend on the results of {one.name}.",
            )


def _connected(operators: Sequence[Operator]) -> list[list[Operator]]:
    """The operators in groups that are connected by streams, each in the order of their numbers."""
    group_of: dict[str, list[Operator]] = {one.name: [one] for one in operators}
    for writer in operators:
        streams = {edge for edge in writer.emits if edge.is_stream}
        for reader in operators:
            mine, other = group_of[writer.name], group_of[reader.name]
            if mine is not other and not streams.isdisjoint(reader.takes):
                mine += other
                group_of.update((one.name, mine) for one in other)
    found = {id(group): group for group in group_of.values()}
    number = {one.name: place for place, one in enumerate(operators)}
    return [sorted(group, key=lambda one: number[one.name]) for group in found.values()]


def _is_input(edge: Edge[Any, Any], flow: Flow, reader: str) -> bool:
    """Whether the order of a topic's or stream's events matters to an operator that takes them."""
    return edge.is_stream or (flow.kinds[edge.name] != "none" and edge.name not in flow.feedback[reader])
