"""Windows as an operator, ``app.window``, and as a field of an actor, ``tr.windowed``: what may be declared. See ``panes``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec

from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.app import App
from tailrace.core.declare.components import Component, context_of
from tailrace.core.declare.context import Context
from tailrace.core.declare.handlers import ResultRole, add_role, on_processing_timer, on_timer, process
from tailrace.core.declare.topic import Edge, Topic
from tailrace.core.durations import duration, spelled
from tailrace.core.errors import DefinitionError, UsageError
from tailrace.core.handling.collections import MapState
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.types import spell
from tailrace.library.agg import Aggregate
from tailrace.library.operators import add_operator, handler, key_type_of, result_stream
from tailrace.library.panes import EMPTY, Machine, Rules, machine
from tailrace.library.windows import AnyWindows, Calendar, Count, Sessions, Sliding, Tumbling

K = TypeVar("K")
E = TypeVar("E")
V = TypeVar("V")
S = TypeVar("S")
Kind = Literal["early", "final", "correction"]
Result = Callable[[S, "Windowed[K, V]", Context[K]], None]
"""A method that gets the results of a field."""


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
    late: Topic[Any, Any] | None = options.get("late")
    rules = _rules(where, windows, aggregate, options)
    _check_input(where, app, edge, rules, late)
    holds, value_type = aggregate.types(type_of(app, edge))
    filled: Any = value_type | type(rules.fill) if rules.fill_windows else value_type
    out, made = _results(app, name, edge, into, rules, filled)
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


def _results(
    app: App, name: str, edge: Edge[Any, Any], into: Topic[Any, Any] | None, rules: Rules, value_type: Any
) -> tuple[Edge[Any, Any], Callable[[Any, int], Any]]:
    """Where results go, and the function that makes what goes there of a result and its event time."""
    more = "corrections" if rules.lateness_ms else "early results" if rules.is_early else ""
    if into is None:
        out: Edge[Any, Any] = result_stream(app, name, Windowed, edge)
        operators(app)[name] = _Known(_windowed(key_type_of(name, edge), value_type), more)
        return out, lambda result, _: result
    if into.is_table and isinstance(rules.windows, Sessions) and more:
        raise DefinitionError(
            f"the window {name!r} has {more} of sessions, which may replace results of another start and end: these "
            f"would stay in the table {into.name!r}",
            hint="Give a topic, or leave early=, early_clock= and lateness= out.",
        )
    made = _filler(f"the window {name!r}", into, value_type)
    if more:
        operators(app)[into.name] = _Known(into.type, more)
    return into, made


class _Known(NamedTuple):
    """A window of an app: the type of its results, with what is known at run time, and what it has besides final ones."""

    type: Any
    more: str


def operators(app: App) -> dict[str, _Known]:
    """What the windows of an app give, by the name of the stream or topic."""
    found: dict[str, _Known] = app.__dict__.setdefault("_windows", {})
    return found


def type_of(app: App, edge: Edge[Any, Any]) -> Any:
    """The type of the events of an edge: of a window's results with key and value."""
    known = operators(app).get(edge.name)
    return edge.type if known is None else known.type


def pass_on(app: App, name: str, edge: Edge[Any, Any]) -> None:
    """Note that an operator passes on events of this edge."""
    if edge.name in operators(app):
        operators(app)[name] = _Known(type_of(app, edge), "")


def _windowed(key_type: Any, value_type: Any) -> Any:
    return Windowed[key_type, value_type]


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
    more = (
        f", lateness {spelled(rules.lateness_ms)}"
        if rules.lateness_ms
        else ", filled"
        if rules.fill_windows
        else ""
    )
    return f"{rules.windows.spec}, {rules.aggregate.spec}{more}"


# --- what is refused ---


def _rules(
    where: str, windows: AnyWindows, aggregate: Aggregate[Any, Any, Any], options: Mapping[str, Any]
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
    if known is not None and known.more:
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
    keys = tuple(name for name in keys if name not in ("start", "end"))  # a table has a value for each window
    inner, cls = event_fields(value_type), topic.type
    getters: dict[str, Callable[[Any, int], Any]] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in keys:
            getters[name] = _key_getter(keys.index(name) if len(keys) > 1 else None)
        elif name in inner and name in ("start", "end", "kind"):
            raise DefinitionError(
                f"{where} has two values for the field {name!r} of {spell(cls)} in the topic {topic.name!r}: that of "
                f"the window, and that of {spell(value_type)}",
                hint="Give one of them another name, or leave into= out and emit the event from a function.",
            )
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


# --- the field ---


class Windows(Component, Generic[E, V]):
    """Windows of an actor, as a field: ``hours: tr.Windows[Reading, float] = tr.windowed(...)``; see ``tr.windowed``."""

    def __init__(self, rules: Rules) -> None:
        self.spec, self._rules = _meaning(rules), rules
        self._types = rules.aggregate.types(None)
        self._kept: Machine | None = None

    def add(self, event: E, /) -> bool:
        """Add an event, at the event time of the handler. Returns whether a window takes it; if not, it counts as dropped."""
        raise self._misused(event)

    def open(self) -> dict[int, V]:
        """The values so far of all windows that have not closed, by their start, in the order of their ends."""
        raise self._misused()

    def _misused(self, *_: Any) -> UsageError:
        return UsageError(
            f"{self.attr or 'a field of windows'} is used outside of a handler",
            hint="Write self.hours.add(event).",
        )

    def parts(self) -> Mapping[str, tuple[Any, Any]]:
        """The panes, of which the map holds the earlier ones."""
        return _parts(self._types[0])

    def check(self, owner: str) -> None:
        """Make what keeps the windows, now that their names are known."""
        del owner
        attr, method, result = self.attr, self.result_method, self._rules.aggregate.result

        def give(actor: Any, ctx: Any, start: int, end: int, acc: Any, kind: Any, at_ms: int) -> None:
            del at_ms
            if method is not None:
                value = self._rules.fill if acc is EMPTY else result(acc)
                getattr(actor, method)(Windowed(ctx.key, start, end, value, kind), ctx)

        names = {"field": f"{attr}__panes", "spilled": f"{attr}__spilled", "timer": attr}
        late = _count_late
        self._kept = machine(msgspec.structs.replace(self._rules, late=late, gives=give, **names))

    def handlers(self) -> Mapping[str, Callable[..., None]]:
        """The timers that close windows and give early results."""
        assert self._kept is not None
        return _timers(self._kept)

    def view(self, instance: Any) -> Any:
        """The windows of an instance, in a handler."""
        assert self._kept is not None
        cls: Any = instance.__class__
        if self._rules.ordered and declaration_of(cls).order != "event-time":
            raise UsageError(
                f"{cls.__name__}.{self.attr} needs its events in the order of event time",
                hint=f'Write class {cls.__name__}(tr.Actor, order="event-time").',
            )
        return _View(self._kept, instance)


class _View:
    """The field of an instance, in a handler."""

    __slots__ = ("_actor", "_kept")

    def __init__(self, kept: Machine, actor: Any) -> None:
        self._kept, self._actor = kept, actor

    def add(self, event: Any) -> bool:
        return self._kept.add(self._actor, event, context_of(self._actor))

    def open(self) -> dict[int, Any]:
        result = self._kept.aggregate.result
        panes = self._kept.opened(self._actor, context_of(self._actor).fired_to)
        return {start: result(acc) for start, _, acc, fresh in panes if fresh >= 0 or self._kept.lateness_ms}


def _count_late(event: Any, ctx: Any) -> None:
    del event
    ctx.count_late()


def windowed(
    windows: AnyWindows, aggregate: Aggregate[E, Any, V], **options: Unpack[FieldOptions]
) -> Windows[E, V]:
    """Windows as a field of an actor, beside its other state.

    ::

        @app.actor
        class Room(tr.Actor):
            hours: tr.Windows[Reading, float] = tr.windowed(
                windows.tumbling("1h"), agg.mean(lambda r: r.celsius)
            )

            @tr.process(readings)
            def read(self, event: Reading, ctx: tr.Context[str]) -> None:
                self.hours.add(event)

            @tr.on_window(hours)
            def hour(self, hour: tr.Windowed[str, float], ctx: tr.Context[str]) -> None:
                ctx.emit(averages, Average(ctx.key, hour.start, hour.value))

    A handler adds the events that should count, at its event time: ``self.hours.add(event)``. ``self.hours.open()`` gives the
    values so far of the windows that are open. The method decorated with ``tr.on_window`` gets each result at its event time, or
    at that of a late event for a correction. The options are those of
    ``App.window``, without ``late`` and ``into``. Aggregates and windows that need the order of event time need an actor with
    ``order="event-time"``.

    Raises:
        DefinitionError: The arguments do not go together.
    """
    return Windows(_rules("a field of windows", windows, aggregate, options))


def on_window(field: Windows[E, V], /) -> Callable[[Result[S, K, V]], Result[S, K, V]]:
    """Make a method ``(self, window, ctx)`` of an actor the one that gets the results of a field of windows.

    Raises:
        DefinitionError: The field is none that ``tr.windowed`` has made, or the method does not take ``(self, window, ctx)``.
    """
    given: Any = field
    if not isinstance(given, Windows):
        raise DefinitionError(
            f"@tr.on_window is given {given!r}", hint="Give a field above it: hours = tr.windowed(...)."
        )

    def decorate(method: Result[S, K, V]) -> Result[S, K, V]:
        add_role(method, "@tr.on_window", ResultRole(field))
        return method

    return decorate
