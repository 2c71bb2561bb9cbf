"""Windows as an operator, ``app.window``, and as a field of an actor, ``tr.windowed``: what may be declared. See ``panes``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec

from tailrace.core.declare.app import App
from tailrace.core.declare.handlers import on_processing_timer, on_timer, process
from tailrace.core.declare.topic import Edge, Topic
from tailrace.core.durations import duration, spelled
from tailrace.core.errors import DefinitionError, UsageError
from tailrace.core.handling.collections import MapState
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.types import spell
from tailrace.library.agg import Aggregate
from tailrace.library.operators import add_operator, handler, key_type_of, result_stream
from tailrace.library.panes import EMPTY, Machine, Rules, machine
from tailrace.library.windows import Calendar, Count, Sessions, Sliding, Tumbling, Windows

K = TypeVar("K")
E = TypeVar("E")
V = TypeVar("V")
S = TypeVar("S")
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


class WindowOptions(TypedDict, total=False):
    """The options of ``App.window``; see there."""

    early: int
    early_clock: str | int | timedelta
    lateness: str | int | timedelta
    late: Topic[Any, Any]
    fill: Any
    fill_windows: int


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
    late: Topic[Any, Any] | None = options.get("late")
    rules = _rules(where, windows, aggregate, options)
    key_type = key_type_of(name, edge)
    _check_input(where, app, edge, rules, late)
    known = operators(app)
    holds, value_type = aggregate.types(
        known[edge.name].type if edge.is_stream and edge.name in known else edge.type
    )
    out: Edge[Any, Any]
    if into is None:
        out = result_stream(app, name, Windowed, edge)
        made: Callable[[Any, int], Any] = _as_it_is
        more = (
            "corrections"
            if rules.lateness_ms
            else "early results"
            if rules.early or rules.early_clock_ms
            else ""
        )
        known[name] = _Known(_windowed(key_type, value_type), more)
    else:
        out, made = into, _filler(where, into, value_type)
    result = aggregate.result

    def give(_: Any, ctx: Any, start: int, end: int, acc: Any, kind: Any, at_ms: int) -> None:
        value = rules.fill if acc is EMPTY else result(acc)
        event = made(Windowed(ctx.key, start, end, value, kind), at_ms)
        ctx.emit(out, event, at=None if at_ms == ctx.event_time else at_ms)

    def too_late(event: Any, ctx: Any) -> None:
        if late is None:
            ctx.count_late()
        else:
            ctx.emit(late, event)

    kept = machine(msgspec.structs.replace(rules, late=too_late, gives=give))

    def take(actor: Any, event: Any, ctx: Any) -> None:
        kept.add(actor, event, ctx)

    body: dict[str, Any] = {"__annotations__": {}, "add": handler(take, process(edge))}
    for part, (annotation, default) in _parts(holds).items():
        body["__annotations__"][part] = annotation
        if default is not None:
            body[part] = default
    body |= _timers(kept)
    add_operator(
        app,
        name,
        f"window: {_meaning(rules)}",
        body,
        emits=(out,) if late is None else (out, late),
        order="event-time" if rules.ordered else None,
    )
    return out


class _Known(NamedTuple):
    """A window of an app: the type of its results, with what is known at run time, and what it has besides final ones."""

    type: Any
    more: str


def operators(app: App) -> dict[str, _Known]:
    """The windows of an app whose results are streams, by name."""
    found: dict[str, _Known] = app.__dict__.setdefault("_windows", {})
    return found


def _windowed(key_type: Any, value_type: Any) -> Any:
    return Windowed[key_type, value_type]


def _as_it_is(result: Any, at_ms: int) -> Any:
    del at_ms
    return result


def _parts(holds: Any) -> Mapping[str, tuple[Any, Any]]:
    pane: Any = tuple[int, int, holds, int]
    return {"panes": (tuple[pane, ...], ()), "spilled": (MapState[int, pane], None)}


def _timers(kept: Machine) -> dict[str, Any]:
    def close(actor: Any, ctx: Any) -> None:
        kept.close(actor, ctx)

    def tick(actor: Any, ctx: Any) -> None:
        kept.tick(actor, ctx)

    found = {} if isinstance(kept.windows, Count) else {"close": handler(close, on_timer(kept.rules.timer))}
    if kept.rules.early_clock_ms:
        found["tick"] = handler(tick, on_processing_timer(kept.rules.timer))
    return found


def _meaning(rules: Rules) -> str:
    """All that stored panes depend on."""
    more = f", lateness {spelled(rules.lateness_ms)}" if rules.lateness_ms else ""
    return f"{rules.windows.spec}, {rules.aggregate.spec}{more}"


# --- what is refused ---


def _rules(
    where: str, windows: Windows, aggregate: Aggregate[Any, Any, Any], options: Mapping[str, Any]
) -> Rules:
    given: Any = windows
    if not isinstance(given, Tumbling | Calendar | Sliding | Sessions | Count):
        raise DefinitionError(
            f"{where} is given {windows!r}, which are no windows", hint='Write windows.tumbling("1h").'
        )
    given = aggregate
    if not isinstance(given, Aggregate):
        raise DefinitionError(
            f"{where} is given {aggregate!r}, which is no aggregate", hint="Write agg.count()."
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
    clock_ms, lateness_ms = _ms(where, options, "early_clock"), _ms(where, options, "lateness")
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
        (lateness_ms and ordered, "lateness= and events in the order of event time"),
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


def _ms(where: str, options: Mapping[str, Any], name: str) -> int:
    if name not in options:
        return 0
    try:
        found_ms = duration(options[name])
    except UsageError as error:
        raise DefinitionError(f"{where} has a wrong {name}: {error.what}", hint=error.hint) from None
    if found_ms == 0:
        raise DefinitionError(f"{where} has {name}={options[name]!r}, which is zero", hint="Leave it out.")
    return found_ms


def _check_input(
    where: str, app: App, edge: Edge[Any, Any], rules: Rules, late: Topic[Any, Any] | None
) -> None:
    known = operators(app).get(edge.name)
    if edge.is_stream and known is not None and known.more:
        raise DefinitionError(
            f"{where} takes {edge.name!r}, which has {known.more}: they would count again",
            hint="Take the final results only: without early=, early_clock= and lateness= there.",
        )
    if isinstance(edge, Topic) and edge.settings.late != "handle" and (rules.lateness_ms or late is not None):
        raise DefinitionError(
            f"{where} asks for late events, and the topic {edge.name!r} takes them away: late={edge.settings.late!r}",
            hint="Declare one of the two.",
        )
    if late is not None and late.type != edge.type:
        raise DefinitionError(
            f"{where} has late={late.name!r} of {late.type_name}, but its events are {edge.type_name}",
            hint="Give a topic of the same type.",
        )


# --- into a topic ---


def _filler(where: str, topic: Topic[Any, Any], value_type: Any) -> Callable[[Any, int], Any]:
    """A function that makes an event of the topic's type from a result and its event time, field by field."""
    key: Any = topic.settings.key
    time = topic.settings.event_time
    keys: Any = key
    if not isinstance(key, tuple):
        keys = (key if isinstance(key, str) else "key",)
    inner, cls = event_fields(value_type), topic.type
    getters: dict[str, Callable[[Any, int], Any]] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in keys:
            getters[name] = _key_getter(keys.index(name) if len(keys) > 1 else None)
        elif name in ("start", "end", "value", "kind"):
            getters[name] = _getter(attrgetter(name))
        elif name == time:
            getters[name] = lambda _, at_ms: at_ms
        elif name in inner:
            getters[name] = _getter(attrgetter(f"value.{name}"))
        elif parameter.default is inspect.Parameter.empty:
            raise DefinitionError(
                f"{where} cannot fill the field {name!r} of {spell(cls)} in the topic {topic.name!r}",
                hint="It fills the fields of the key, start, end, value, kind, the event time, and those of a value of "
                "agg.several, by name. Give the field a default, or leave into= out and emit the event from a function.",
            )
    return lambda result, at_ms: cls(**{name: get(result, at_ms) for name, get in getters.items()})


def _key_getter(at: int | None) -> Callable[[Any, int], Any]:
    return lambda result, _: result.key if at is None else result.key[at]


def _getter(get: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    return lambda result, _: get(result)
