"""Windows: what may be declared, as an operator, ``app.window``, or as a field (``window_field``). See ``panes``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec

from tailrace.core import rows
from tailrace.core.declare.annotations import members_of
from tailrace.core.declare.app import App
from tailrace.core.declare.handlers import process
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Edge, Topic
from tailrace.core.durations import declared_duration, spelled
from tailrace.core.errors import DefinitionError
from tailrace.core.handling.collections import MapState
from tailrace.core.suggestions import refuse_unknown
from tailrace.library.agg import Aggregate
from tailrace.library.filling import Get, filler
from tailrace.library.operators import (
    add_operator,
    handler,
    key_type_of,
    opened,
    result_stream,
    timer,
    unchanging,
)
from tailrace.library.panes import EMPTY, Machine, Rules
from tailrace.library.sliding import block_ms_of, machine
from tailrace.library.windows import AnyWindows, Calendar, Count, Sessions, Sliding, Tumbling

K = TypeVar("K")
E = TypeVar("E")
V = TypeVar("V")
Kind = Literal["early", "final", "correction"]


class Windowed(msgspec.Struct, Generic[K, V], frozen=True):
    """The result of a window of a key: ``start`` and ``end`` are milliseconds since 1970.

    ``kind`` is ``"early"`` before the window has closed, ``"final"`` when it closes, and ``"correction"`` for each late event
    that it still takes. A correction replaces all results of the key whose start and end are within its own.
    """

    key: K
    start: int
    end: int
    value: V
    kind: Kind = "final"


class FieldOptions(TypedDict, total=False):
    """The options of ``tr.windowed``; see ``App.window``."""

    early: int
    early_clock: str | int | timedelta
    lateness: str | int | timedelta
    fill: Any
    fill_windows: int


class WindowOptions(FieldOptions, total=False):
    """The options of ``App.window``; see there."""

    late: Topic[Any, Any]


def add_window(
    app: App,
    name: str,
    edge: Edge[Any, Any],
    windows: Any,
    aggregate: Any,
    into: Topic[Any, Any] | None,
    options: Any,
) -> Edge[Any, Any]:
    """Add the operator of ``App.window``; see there."""
    where = f"the window {name!r}"
    refuse_unknown(where, options, (*WindowOptions.__annotations__, "into"))
    late: Topic[Any, Any] | None = options.get("late")
    rules = rules_of(where, windows, aggregate, options)
    refuse_revised(where, app, edge)
    if rules.lateness_ms:
        refuse_taken_late(where, edge)
    too_late = late_events(where, edge, late)
    holds, value_type = aggregate.types(type_of(app, edge))
    if edge.name not in operators(app):
        unchanging(f"the accumulator of {rules.aggregate.spec}", holds)
    filled: Any = value_type | type(rules.fill) if rules.fill_windows else value_type
    out, made = _results(app, name, edge, into, rules, filled)
    result = aggregate.result

    def give(_: Any, ctx: Any, start: int, end: int, acc: Any, kind: Any, at_ms: int) -> None:
        value = rules.fill if acc is EMPTY else result(acc)
        event = made(Windowed(ctx.key, start, end, value, kind), ctx.key, at_ms)
        ctx.emit(out, event, at=None if at_ms == ctx.event_time else at_ms)

    kept = machine(msgspec.structs.replace(rules, late=too_late, gives=give))
    body: dict[str, Any] = {"__annotations__": {}, "add": handler(kept.taker(), process(edge))}
    for part, (annotation, default) in pane_fields(holds, windows).items():
        body["__annotations__"][part] = annotation
        if default is not None:
            body[part] = default
    body |= {**timers(kept), "opened": opened(kept.counts)}
    add_operator(
        app,
        name,
        f"window: {meaning(rules)}",
        body,
        emits=(out,) if late is None else (out, late),
        order="event-time" if rules.ordered else None,
    )
    return out


def _results(
    app: App, name: str, edge: Edge[Any, Any], into: Topic[Any, Any] | None, rules: Rules, value_type: Any
) -> tuple[Edge[Any, Any], Get]:
    """Where results go, and the function that makes what goes there of a result, its key and its event time."""
    more = "corrections" if rules.lateness_ms else "early results" if rules.is_early else ""
    key_type = key_type_of(name, edge)
    if into is None:
        out: Edge[Any, Any] = result_stream(app, name, windowed_type(key_type, sure_type(value_type)), edge)
        operators(app)[name] = _Known(windowed_type(key_type, value_type), more)
        return out, lambda result, _, __: result
    grows, key = isinstance(rules.windows, Sessions), into.settings.key
    has_start = callable(key) or not {"start", "end"}.isdisjoint(
        (key,) if isinstance(key, str) else key or ()
    )
    if into.is_table and more and (grows or not (has_start or isinstance(rules.windows, Count))):
        raise DefinitionError(
            f"the window {name!r} has {more}, which must replace its own results before, and the table {into.name!r} keeps the last "
            f"of each key: {'a session that grows has another start' if grows else 'there, it replaces that of any window'}",
            hint=f"Give a topic, or leave early=, early_clock= and lateness= out{'' if grows else ', or add start to the key'}.",
        )
    parts = [(attrgetter("value"), value_type)]
    fills: list[Any] = [type(rules.fill)] if rules.fill_windows else []
    own = windowed_type(key_type, value_type)
    made = filler(f"the window {name!r}", into, edge, own, parts, sure=False, fills=fills)
    if more:
        operators(app)[into.name] = _Known(into.type, more)
    return into, made


class _Known(NamedTuple):
    """A window of an app: the type of its results, with what is known at run time, and what it has besides final ones."""

    type: Any
    more: str


_FINAL: Final = _Known(None, "")


def operators(app: App) -> dict[str, _Known]:
    """What the windows of an app give, by the name of the stream or topic."""
    return _noted(app, "_windows")


def revised_by(app: App, edge: Edge[Any, Any]) -> str:
    """What comes on an edge, also through operators that pass events on, besides final results. Empty if nothing does."""
    edges, passed = [edge], _noted(app, "_passed")
    for one in edges:
        if (known := operators(app).get(one.name)) is not None and known.more:
            return known.more
        if one is not edge and isinstance(one, Topic) and one.is_table:
            return f"new values of the table {one.name!r}"
        late = [other for other in app.topics.values() if other.settings.late_topic is one]
        edges += [other for other in (*late, *passed.get(one.name, ())) if other not in edges]
    return ""


def refuse_revised(where: str, app: App, edge: Edge[Any, Any]) -> None:
    """Raise DefinitionError if an edge has more than final results, now or when the app is complete."""
    if more := revised_by(app, edge):
        raise DefinitionError(
            f"{where} takes {edge.name!r}, which has {more}: they would count again",
            hint="Take the final results only: without early=, early_clock= and lateness= there.",
        )
    _noted(app, "_adding")[where, edge.name] = edge


def check_added(app: App) -> None:
    """Refuse what adds up more than final results, whatever was declared first."""
    for (where, _), edge in list(_noted(app, "_adding").items()):
        refuse_revised(where, app, edge)


def check_corrections(app: App, plan: Plan) -> None:
    """Refuse windows that give corrections, at times that have passed, to a stream of handlers in the order of event time."""
    for one in plan.operators:
        if (
            one.ordered
            and one.name in app.streams
            and operators(app).get(one.name, _FINAL).more == "corrections"
        ):
            raise DefinitionError(
                f"the window {one.name!r} has corrections, and handlers connected with it by streams handle their events in the order of "
                "event time, in which a correction has no place",
                hint="Leave lateness= out, give the results to a topic (into=), or let these handlers take them as they arrive.",
            )


def _noted(app: App, what: str) -> dict[Any, Any]:
    found: dict[Any, Any] = app.__dict__.setdefault(what, {})
    return found


def refuse_taken_late(where: str, edge: Edge[Any, Any]) -> None:
    """Raise DefinitionError if late events do not come to an operator that asks for them."""
    if isinstance(edge, Topic) and edge.settings.late != "handle":
        raise DefinitionError(
            f"{where} asks for late events, and the topic {edge.name!r} takes them away: late={edge.settings.late!r}",
            hint="Declare one of the two.",
        )


def writer(
    where: str, edge: Edge[Any, Any], option: str, topic: Any, count: Callable[[Any], None]
) -> Callable[[Any, Any], None]:
    """What is done with an event that is not passed on, and its context: it is counted, or written to the topic that is given."""
    if topic is None:
        return lambda _, ctx: count(ctx)
    if getattr(topic, "type", None) != edge.type or topic.is_stream:
        raise DefinitionError(
            f"{where} has {option}={topic!r}, but its events are {edge.type_name}",
            hint="Give a topic of the same type.",
        )
    return lambda event, ctx: ctx.emit(topic, event)


def late_events(where: str, edge: Edge[Any, Any], late: Any) -> Callable[[Any, Any], None]:
    """What is done with a late event that is not passed on."""
    if late is not None:
        refuse_taken_late(where, edge)
    return writer(where, edge, "late", late, lambda ctx: ctx.count_late())


def type_of(app: App, edge: Edge[Any, Any]) -> Any:
    """The type of the events of an edge: of a window's results with key and value."""
    known = operators(app).get(edge.name)
    return edge.type if known is None else known.type


def pass_on(app: App, edge: Edge[Any, Any], *to: Edge[Any, Any]) -> None:
    """Note that an operator passes on events of an edge to others."""
    for out in to:
        _noted(app, "_passed").setdefault(out.name, []).append(edge)
        if out.is_stream and out.type is edge.type and edge.name in operators(app):
            operators(app)[out.name] = _Known(type_of(app, edge), "")


def sure_type(value_type: Any) -> Any:
    """The type of values, as handlers are compared with it: of several, such as the int | float of sums, it is not known which."""
    return Any if value_type is None or len(members_of(value_type)) > 1 else value_type


def windowed_type(key_type: Any, value_type: Any) -> Any:
    """The type of results with such keys and values."""
    return Windowed[key_type, value_type]


def pane_fields(holds: Any, windows: AnyWindows) -> Mapping[str, tuple[Any, Any]]:
    """The fields of an actor that keep panes, with their defaults."""
    pane: Any = tuple[int, int, holds, int]
    blocks = {"blocks": (MapState[int, tuple[holds, ...]], None)} if block_ms_of(windows) else {}
    return {"panes": (tuple[pane, ...], ()), "spilled": (MapState[int, pane], None), **blocks}


def timers(kept: Machine) -> dict[str, Any]:
    """The handlers of the timers that close windows and give early results."""

    def close(actor: Any, ctx: Any) -> None:
        kept.close(actor, ctx)

    def tick(actor: Any, ctx: Any) -> None:
        kept.tick(actor, ctx)

    name, silent = kept.rules.timer, machine(msgspec.structs.replace(kept.rules, gives=None))
    found = {} if isinstance(kept.windows, Count) else {"close": timer(close, name, silent.close)}
    if kept.rules.early_clock_ms:
        found["tick"] = timer(tick, name, silent.tick, rows.PROCESSING_TIME)
    return found


def meaning(rules: Rules) -> str:
    """All that stored panes depend on."""
    more = (
        f", lateness {spelled(rules.lateness_ms)}"
        if rules.lateness_ms
        else ", filled"
        if rules.fill_windows
        else ""
    )
    if rules.early_clock_ms:
        more += ", by the clock"  # the timer is set by the first event since a result
    return f"{rules.windows.spec}, {rules.aggregate.spec}{more}"


# --- what is refused ---


def rules_of(
    where: str, windows: AnyWindows, aggregate: Aggregate[Any, Any, Any], options: Mapping[str, Any]
) -> Rules:
    """The rules that these arguments declare. DefinitionError if they do not go together."""
    given: Any = windows
    if not isinstance(given, Tumbling | Calendar | Sliding | Sessions | Count):
        raise DefinitionError(
            f"{where} is given {windows!r}, which are no windows", hint='Write windows.tumbling("1h").'
        )
    given = aggregate
    if not isinstance(given, Aggregate):
        raise DefinitionError(
            f"{where} is given {aggregate!r}, which is no aggregate",
            hint="Write agg.count(), or derive a class from agg.Aggregate.",
        )
    ordered = aggregate.ordered or (isinstance(windows, Sessions) and windows.at_most_ms is not None)
    if not aggregate.merges and (
        isinstance(windows, Sliding) or (isinstance(windows, Sessions) and not ordered)
    ):
        raise DefinitionError(
            f"{where} needs to merge accumulators, and the aggregate {aggregate.spec} cannot",
            hint="Give it a method merge(a, b)"
            + (", or ordered = True." if isinstance(windows, Sessions) else "."),
        )
    early: Any = options.get("early", 0)
    clock_ms, lateness_ms = (
        declared_duration(where, name, options[name], "Leave it out.") if name in options else 0
        for name in ("early_clock", "lateness")
    )
    fill: Any = options.get("fill_windows", 24 if "fill" in options else 0)
    if "early" in options and (type(early) is not int or early < 1):
        hint = "Give a number of events, or a time of the clock: early_clock=."
        raise DefinitionError(f"{where} has early={early!r}", hint=hint)
    if type(fill) is not int or not 0 <= fill <= 100_000 or ("fill" in options) != bool(fill):
        hint = "Give fill= the value of an empty window, and fill_windows= how many follow one with events (up to 100000)."
        raise DefinitionError(f"{where} has fill_windows={fill!r}", hint=hint)
    is_early, is_fixed = bool(early or clock_ms), isinstance(windows, Tumbling | Calendar)
    counted = isinstance(windows, Count)
    is_global = isinstance(windows, Count) and windows.events is None
    for is_wrong, what in (
        (early and clock_ms, "early= and early_clock= at once"),
        (is_early and isinstance(windows, Sliding), "early results of sliding windows"),
        (is_early and counted and not is_global, "early results of windows.count"),
        (is_global and not is_early, "global windows, which never end, without early= or early_clock="),
        (lateness_ms and counted, "lateness= for windows without a time"),
        (
            lateness_ms and ordered,
            f"lateness=, and {aggregate.spec if aggregate.ordered else 'at_most='} needs its events in the order of event time, which has no late ones",
        ),
        ("late" in options and counted and not ordered, "late= for windows without a time"),
        (fill and not is_fixed, "fill= for other windows than tumbling, daily, weekly and monthly ones"),
        (fill and (lateness_ms or is_early), "fill= together with lateness= or early results"),
    ):
        if is_wrong:
            raise DefinitionError(f"{where} has {what}", hint="Leave out what does not go together.")
    return Rules(
        windows=windows,
        aggregate=aggregate,
        ordered=ordered,
        lateness_ms=lateness_ms,
        early=early,
        early_clock_ms=clock_ms,
        fill_windows=fill,
        fill=options.get("fill"),
    )
