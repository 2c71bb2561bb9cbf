"""Windows as a field of an actor, ``tr.windowed``. See ``panes``.

Timers of one instant fire by name. The timer of a field ``day`` is ``~day``, so that it fires after the user's own. When it fires at T
and a field that is declared earlier has a timer at T, it is set again, at T, under a name that sorts after both, by its place among the
fields. So the fields of a key close in the order of declaration, and a result may be added to any later field.

What an event does to a field depends on the handler that adds it. A handler whose call comes too late, or whose event counts again, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar, Unpack

import msgspec

from tailrace.core import rows
from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.app import App
from tailrace.core.declare.components import Component, context_of
from tailrace.core.declare.context import Context
from tailrace.core.declare.handlers import ResultRole, TimerRole, add_role, roles_of
from tailrace.core.errors import DefinitionError, UsageError
from tailrace.core.suggestions import refuse_unknown
from tailrace.library.agg import Aggregate
from tailrace.library.operators import timer, unchanging
from tailrace.library.panes import EMPTY, Machine, Rules
from tailrace.library.sliding import machine
from tailrace.library.windowed import (
    FieldOptions,
    Windowed,
    meaning,
    pane_fields,
    revised_by,
    rules_of,
    sure_type,
    timers,
    windowed_type,
)
from tailrace.library.windows import AnyWindows

K = TypeVar("K")
E = TypeVar("E")
V = TypeVar("V")
S = TypeVar("S")
Result = Callable[[S, Windowed[K, V], Context[K]], None]
"""A method that gets the results of a field."""
LAST: Final = "~"
"""Begins the names of the timers of fields: it sorts after all names that are likely."""
_BEHIND: Final = "\U0010fffd"
"""Sorts after every letter of a field's name."""
_revising: set[int] = set()
"""The ids of the instances whose methods are called with an early result or a correction."""


class Windows(Component, Generic[E, V]):
    """Windows of an actor, as a field: ``hours: tr.Windows[Reading, float] = tr.windowed(...)``; see ``tr.windowed``."""

    def __init__(self, rules: Rules) -> None:
        self.spec, self._rules = meaning(rules), rules
        self._types = rules.aggregate.types(None)
        self.result_type = windowed_type(Any, sure_type(self._types[1]))
        unchanging(f"the accumulator of {rules.aggregate.spec}", self._types[0])
        self._kept: Machine | None = None
        self.revised: dict[str, str] = {}
        """Methods that take early results or corrections, and of what."""
        self.judged: set[str] = set()
        """The handlers that may add."""

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
        return pane_fields(self._types[0], self._rules.windows)

    def check(self, owner: str) -> None:
        """Make what keeps the windows, now that their names are known."""
        del owner
        attr, method, result = self.attr, self.result_method, self._rules.aggregate.result

        def give(actor: Any, ctx: Any, start: int, end: int, acc: Any, kind: Any, at_ms: int) -> None:
            del at_ms
            if method is None:
                return
            one = Windowed(ctx.key, start, end, self._rules.fill if acc is EMPTY else result(acc), kind)
            if kind == "final":
                getattr(actor, method)(one, ctx)
                return
            _revising.add(id(actor))
            try:
                getattr(actor, method)(one, ctx)
            finally:
                _revising.discard(id(actor))

        names = {
            "field": f"{attr}__panes",
            "spilled": f"{attr}__spilled",
            "blocks": f"{attr}__blocks",
            "timer": LAST + attr,
        }
        self._kept = machine(msgspec.structs.replace(self._rules, late=_count_late, gives=give, **names))

    def handlers(self) -> Mapping[str, Callable[..., None]]:
        """The timers that close windows, in their turn, and give early results."""
        assert self._kept is not None
        found = timers(self._kept)
        if self.place == 0 or "close" not in found:
            return found
        close, (name, again) = found["close"], self.turns()

        def in_turn(actor: Any, ctx: Any) -> None:
            fields = _fields(actor.__class__)
            if ctx.timer_name == name and any(one.is_due(actor, ctx) for one in fields[: fields.index(self)]):
                ctx.set_timer(ctx.event_time, again)
            else:
                ctx.cancel_timer(again)
                close(actor, ctx)

        failed = next(role.failed for role in roles_of(close) if isinstance(role, TimerRole))
        return found | {"close": timer(timer(in_turn, name, failed), again, failed)}

    def turns(self) -> tuple[str, str]:
        """The names of the timer that closes its windows: the usual one, and behind those of earlier fields."""
        return LAST + self.attr, LAST + _BEHIND * (self.place + 1) + self.attr

    def is_due(self, actor: Any, ctx: Any) -> bool:
        """Whether it has a timer at this instant."""
        pending = ctx._unit.table.parts(actor).timers
        found = [pending.get((rows.EVENT_TIME, b"n" + name.encode())) for name in self.turns()]
        return any(one is not None and one.time_ms == ctx.event_time for one in found)

    def opened(self, instance: Any, fired_ms: int) -> Mapping[str, int]:
        """The windows that are open."""
        assert self._kept is not None
        return self._kept.counts(instance, fired_ms)

    def view(self, instance: Any) -> Any:
        """The windows of an instance, in a handler."""
        assert self._kept is not None
        cls: Any = instance.__class__
        if self._rules.ordered and declaration_of(cls).order != "event-time":
            raise UsageError(
                f"{cls.__name__}.{self.attr} needs its events in the order of event time",
                hint=f'Write class {cls.__name__}(tr.Actor, order="event-time").',
            )
        return _View(self, self._kept, instance)

    def judge(self, cls: Any, name: str) -> None:
        """Refuse a handler, by its name, whose events would not count once and in their window."""
        declaration = declaration_of(cls)
        by = next(one for one in declaration.handlers if one.method == name.rpartition(".")[2])
        if by.method in self.revised:
            raise _counts_again(
                f"{by.where} adds to {self.attr!r} while it handles {self.revised[by.method]}",
                "Take them from a stream, to which an @app.process function emits final results only",
            )
        for role in by.roles:
            if not isinstance(role, TimerRole) or role.domain != rows.EVENT_TIME:
                continue
            other = declaration.components.get(role.family.lstrip(LAST + _BEHIND))
            if role.family.startswith(LAST) and isinstance(other, Windows):
                if other.place >= self.place:
                    raise UsageError(
                        f"a result of {other.attr!r} is added to {self.attr!r}, whose windows close before it at the same instant",
                        hint=f"Declare {self.attr!r} after {other.attr!r}, whose results it takes.",
                    )
            elif not "" < role.family < LAST:
                raise UsageError(
                    f"{by.where} adds to {self.attr!r} in a timer that fires after its windows of the same instant have closed",
                    hint='Give the timer a name in ASCII: ctx.set_timer(time, "tick"), @tr.on_timer("tick").',
                )
        self.judged.add(name)


class _View:
    """The field of an instance, in a handler."""

    __slots__ = ("_actor", "_field", "_kept")

    def __init__(self, field: Windows[Any, Any], kept: Machine, actor: Any) -> None:
        self._field, self._kept, self._actor = field, kept, actor

    def add(self, event: Any) -> bool:
        actor = self._actor
        ctx: Any = context_of(actor)
        route = ctx._unit.route
        if route.name not in self._field.judged:
            self._field.judge(actor.__class__, route.name)
        if _revising and id(actor) in _revising:
            raise _counts_again(
                f"an early result or a correction of {route.name} is added to {self._field.attr!r}",
                "Add final results only",
            )
        return self._kept.add(actor, event, ctx)

    def open(self) -> dict[int, Any]:
        result = self._kept.aggregate.result
        panes = self._kept.opened(self._actor, context_of(self._actor).fired_to)
        return {start: result(acc) for start, _, acc, fresh in panes if fresh >= 0 or self._kept.lateness_ms}


def _counts_again(what: str, instead: str) -> UsageError:
    return UsageError(f"{what}: its events would count again", hint=f'{instead}: if window.kind == "final".')


def _fields(cls: Any) -> list[Windows[Any, Any]]:
    """The fields of windows of an actor, in the order of declaration."""
    return [one for one in declaration_of(cls).components.values() if isinstance(one, Windows)]


def check_fields(app: App) -> None:
    """Note the handlers that take operators with early results or corrections: these must not be added to a field."""
    for cls in app.actors.values():
        for one in _fields(cls):
            for by, edge in [(each, edge) for each in declaration_of(cls).handlers for edge in each.edges]:
                if more := revised_by(app, edge):
                    one.revised[by.method] = f"{edge.name!r}, which has {more}"


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
    where = "a field of windows"
    for name in ("late", "into"):
        if name in options:
            hint = "add returns False for an event that no window takes: emit it. The method with @tr.on_window emits results."
            raise DefinitionError(f"{where} has no option {name!r}", hint=hint)
    refuse_unknown(where, options, FieldOptions.__annotations__)
    return Windows(rules_of(where, windows, aggregate, options))


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
    return partial(add_role, decorator="@tr.on_window", role=ResultRole(field))
