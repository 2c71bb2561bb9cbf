"""Operators of one input that pass events on, or rank them: what ``App.dedupe``, ``limit``, ``sample`` and ``top`` add.

**dedupe.** A *sighting* is an event that was passed on: its event time *t* and its id. An event of the same id with a time from
*t - within* to *t + within* is a duplicate. A sighting is freed when no event up to *t + within + lateness* is expected any more. An event
that is late by ``lateness`` or more may have a sighting that is freed: it is a duplicate, or left out as late, and never passed on. So any
two events of one id that are passed on are more than ``within`` apart.

A key has its earliest sightings in a plain field, ascending. What does not fit is kept twice: by id, to be found, and by time, to be
moved to the field when that is empty. The one timer of a key is for the first sighting in the field.

**limit.** The periods of a key are panes (see ``panes``) whose accumulator is the number of events passed on.

**sample.** No state: the hash of a value decides, so it is the same in every run and every app.

**top.** The exact sums of all names are entries of a map, those of the best names also a plain field. A sum changes the best names only if it
is one of them, or exceeds the last. Only where one of them falls, all names are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from datetime import timedelta
from hashlib import blake2b
from heapq import nsmallest
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from tailrace.core.declare.app import App
from tailrace.core.declare.handlers import on_timer, process
from tailrace.core.declare.topic import Edge, Order, Stream, Topic
from tailrace.core.declare.topic_declaration import value_reader
from tailrace.core.durations import declared_duration, spelled
from tailrace.core.errors import DefinitionError, DurableValueError, UnfitValueError
from tailrace.core.handling.collections import MapState
from tailrace.core.values.key_paths import key_type_of
from tailrace.core.values.map_keys import map_key_codec_for
from tailrace.core.values.types import spell
from tailrace.library import agg
from tailrace.library.agg import plus, rounded
from tailrace.library.operators import add_operator, handler, opened, result_stream
from tailrace.library.panes import Machine, Rules
from tailrace.library.windowed import late_events, pass_on, refuse_revised, writer
from tailrace.library.windows import Tumbling, at_least_one

K = TypeVar("K")
IN_FIELD: Final = 32
"""Sightings of a key in its plain field."""
_tuple: Any = tuple  # with types that a checker does not know
_map: Any = MapState
_time = itemgetter(0)
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def add_dedupe(
    app: App,
    name: str,
    edge: Edge[Any, Any],
    by: Any,
    within: str | int | timedelta,
    by_type: Any,
    lateness: str | int | timedelta,
    late: Topic[Any, Any] | None,
    order: Order | None,
) -> Stream[Any, Any]:
    """Add the operator of ``App.dedupe``; see there."""
    where = f"the operator {name!r}"
    out = result_stream(app, name, edge.type, edge)
    try:
        id_type, id_of = typed_value(where, edge, by, by_type)
    except DefinitionError as error:
        raise DefinitionError(
            error.what, hint=f'{error.hint} The default is by="id".' if by == "id" else error.hint
        ) from None
    within_ms = declared_duration(where, "within", within, "Give a longer one.")
    lateness_ms = declared_duration(where, "lateness", lateness)
    hold_ms, leave_out = within_ms + lateness_ms, late_events(where, edge, late)

    def take(actor: Any, event: Any, ctx: Any) -> None:
        time_ms, one = ctx.event_time, id_of(event)
        seen = [at for at, other in actor.sightings if other == one]
        if actor.more:
            seen += actor.more_by_id.get(one, ())
        if any(-within_ms <= time_ms - at <= within_ms for at in seen):
            ctx.metrics.count(f"{name}.duplicates")
        elif time_ms <= ctx.fired_to - lateness_ms:
            leave_out(event, ctx)
        else:
            keep(actor, ctx, time_ms, one)
            ctx.emit(out, event)

    def keep(actor: Any, ctx: Any, time_ms: int, one: Any) -> None:
        field: tuple[Any, ...] = actor.sightings
        at = bisect_right(field, time_ms, key=_time)
        if at == len(field) and (actor.more or at == IN_FIELD):
            keep_more(actor, time_ms, one)
            return
        field = (*field[:at], (time_ms, one), *field[at:])
        if len(field) > IN_FIELD:
            keep_more(actor, *field[-1])
        actor.sightings = field[:IN_FIELD]
        if at == 0:
            ctx.set_timer(time_ms + hold_ms, "free")

    def keep_more(actor: Any, time_ms: int, one: Any) -> None:
        actor.more += 1
        actor.more_by_time[time_ms, one] = None
        actor.more_by_id[one] = (*actor.more_by_id.get(one, ()), time_ms)

    def free(actor: Any, ctx: Any) -> None:
        until_ms = ctx.event_time - hold_ms
        field: tuple[Any, ...] = tuple([one for one in actor.sightings if one[0] > until_ms])
        while not field and actor.more:
            moved: list[Any] = list(islice(actor.more_by_time.keys(), IN_FIELD))
            for time_ms, one in moved:
                del actor.more_by_time[time_ms, one]
                times = tuple([at for at in actor.more_by_id.pop(one) if at != time_ms])
                if times:
                    actor.more_by_id[one] = times
            actor.more -= len(moved)
            field = tuple([one for one in moved if one[0] > until_ms])
        actor.sightings = field
        if field:
            ctx.set_timer(field[0][0] + hold_ms, "free")

    sighting = _tuple[int, id_type]
    body = {
        "__annotations__": {
            "sightings": _tuple[sighting, ...],
            "more": int,
            "more_by_id": _map[id_type, tuple[int, ...]],
            "more_by_time": _map[sighting, None],
        },
        "sightings": (),
        "more": 0,
        "take": handler(take, process(edge)),
        "free": handler(free, on_timer("free")),
        "opened": opened(lambda actor, _: {"ids": len(actor.sightings) + actor.more}),
    }
    emits = (out,) if late is None else (out, late)
    pass_on(app, edge, *emits)
    add_operator(app, name, f"dedupe: by {_spelled(by)}", body, emits=emits, order=order)
    return out


def add_sample(
    app: App, name: str, edge: Edge[Any, Any], by: Any, fraction: Any, order: Order | None
) -> Stream[Any, Any]:
    """Add the operator of ``App.sample``; see there."""
    where = f"the operator {name!r}"
    out = result_stream(app, name, edge.type, edge)
    value_of = untyped_value(where, edge, "by", by)
    if type(fraction) not in (int, float) or not 0 < fraction <= 1:
        raise DefinitionError(
            f"{where} has fraction={fraction!r}", hint="Give a number above 0, and at most 1: fraction=0.25."
        )
    below = int(fraction * (1 << 64))

    def take(event: Any, ctx: Any) -> None:
        digest = blake2b(_encode(value_of(event)), digest_size=8).digest()
        if int.from_bytes(digest, "big") < below:
            ctx.emit(out, event)

    pass_on(app, edge, out)
    function = handler(take, lambda function: function)
    app.process(edge, name=name, emits=(out,), order=order)(function)
    return out


def add_limit(
    app: App,
    name: str,
    edge: Edge[Any, Any],
    n: int,
    per: str | int | timedelta,
    rest: Topic[Any, Any] | None,
    late: Topic[Any, Any] | None,
    order: Order | None,
) -> Stream[Any, Any]:
    """Add the operator of ``App.limit``; see there."""
    where = f"the operator {name!r}"
    out = result_stream(app, name, edge.type, edge)
    at_least_one(where, "n", n)
    windows = Tumbling(declared_duration(where, "per", per, "Give a longer one."))
    too_many = writer(where, edge, "rest", rest, lambda ctx: ctx.metrics.count(f"{name}.limited"))

    rules = Rules(windows=windows, aggregate=agg.count(), ordered=False, late=late_events(where, edge, late))
    panes = Machine(rules)

    def close(actor: Any, ctx: Any) -> None:
        panes.close(actor, ctx)

    def take(actor: Any, event: Any, ctx: Any) -> None:
        start, end = windows.at(ctx.event_time)
        passed = next(panes.panes(actor, end, end + 1), (0, 0, 0, 0))[2]
        if end - 1 <= ctx.fired_to:
            panes.late(event, ctx)
        elif passed >= n:
            too_many(event, ctx)
        else:
            panes.put(actor, (start, end, passed + 1, 0))
            if not passed:
                panes.arm(actor, ctx, ctx.fired_to)
            ctx.emit(out, event)

    pane = tuple[int, int, int, int]
    body = {
        "__annotations__": {"panes": tuple[pane, ...], "spilled": MapState[int, pane]},
        "panes": (),
        "take": handler(take, process(edge)),
        "close": handler(close, on_timer(rules.timer)),
        "opened": opened(lambda actor, _: {"periods": sum(1 for _ in panes.panes(actor))}),
    }
    emits = (out, *(one for one in (rest, late) if one is not None))
    pass_on(app, edge, *emits)
    add_operator(app, name, f"limit: per {spelled(windows.size_ms)}", body, emits=emits, order=order)
    return out


class Top(msgspec.Struct, Generic[K], frozen=True):
    """The best names of a key: each with its sum, the greatest first. ``at`` is the event time of the event that changed them."""

    key: K
    best: tuple[tuple[Any, float], ...]
    at: int


def add_top(
    app: App, name: str, edge: Edge[Any, Any], n: int, by: Any, by_type: Any, of: Any
) -> Stream[Any, Any]:
    """Add the operator of ``App.top``; see there."""
    where = f"the operator {name!r}"
    out = result_stream(app, name, Top, edge)
    refuse_revised(where, app, edge)
    at_least_one(where, "n", n)
    name_type, name_of = typed_value(where, edge, by, by_type)
    number_of, encode = untyped_value(where, edge, "of", of), map_key_codec_for(name_type).encode
    if not callable(of) and (found := key_type_of(edge.type, of)) not in (int, float):
        raise DefinitionError(
            f"{where} adds of={of!r}, which is {spell(found)}", hint="Name a field with a number."
        )

    def rank(one: tuple[Any, Any]) -> tuple[float, bytes]:
        number = rounded(one[1])
        return (-number if number == number else inf, encode(one[0]))  # NaN comes last

    def take(actor: Any, event: Any, ctx: Any) -> None:
        one, best = name_of(event), dict(actor.best)
        total = plus(actor.sums.get(one, 0), number_of(event))
        actor.sums[one] = total
        falls = len(best) == n and one in best and rank((one, total)) > rank((one, best[one]))
        best[one] = total
        ranked = tuple(nsmallest(n, actor.sums.items() if falls else best.items(), key=rank))
        if ranked != actor.best and repr(ranked) != repr(actor.best):  # NaN equals itself here
            actor.best = ranked
            ctx.emit(out, Top(ctx.key, tuple([(each, rounded(acc)) for each, acc in ranked]), ctx.event_time))

    body = {
        "__annotations__": {
            "best": _tuple[_tuple[name_type, agg.Sum], ...],
            "sums": _map[name_type, agg.Sum],
        },
        "best": (),
        "opened": opened(lambda actor, _: {"names": sum(1 for _ in actor.sums)}),
        "take": handler(take, process(edge)),
    }
    add_operator(app, name, f"top: {n} by {_spelled(by)}", body, emits=(out,))
    return out


# --- what an operator is given ---


def untyped_value(where: str, edge: Edge[Any, Any], option: str, path: Any) -> Callable[[Any], Any]:
    """The function that gets a field of an event, or several, by this option; a function is returned as it is."""
    if callable(path):
        return path  # type: ignore[no-any-return]  # it takes an event
    return value_reader(where, edge.type, path, None, option=option, codec_for=lambda _: None)[1]


def typed_value(where: str, edge: Edge[Any, Any], by: Any, by_type: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The type of what ``by`` gives of an event, and the function that gets it, which refuses a value of another type."""
    declared, get = value_reader(where, edge.type, by, by_type, option="by", codec_for=map_key_codec_for)
    check = map_key_codec_for(declared).encode

    def value_of(event: Any) -> Any:
        value = get(event)
        try:
            check(value)
        except (DurableValueError, UnfitValueError) as error:
            raise type(error)(
                f"{where} takes values of type {spell(declared)} by {_spelled(by)}, and an event has {value!r:.80}",
                hint="Look at what its producer sends, or declare the type that it has.",
            ) from None
        return value

    return declared, value_of


def _spelled(by: Any) -> str:
    return by if isinstance(by, str) else "a function" if callable(by) else ", ".join(by)
