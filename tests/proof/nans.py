"""An app whose handlers compute NaNs with any bits, put them wherever a float may be, and look at the bits of their state."""

from __future__ import annotations

import math
import struct
from random import Random
from typing import Any, NamedTuple

import msgspec

import tailrace as tr
from tailrace.core.values.canonical_nan import pack_float


def nan_of(random: Random) -> float:
    """A NaN with any bits, as the interpreter or the processor may give it."""
    sign, quiet = random.getrandbits(1) << 63, random.getrandbits(1) << 51
    payload = random.choice((0, 0, 1, random.getrandbits(51))) or (not quiet)
    (value,) = struct.unpack(">d", (sign | 0x7FF << 52 | quiet | payload).to_bytes(8, "big"))
    assert math.isnan(value)
    return float(value)


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Inner(msgspec.Struct, frozen=True):
    x: float
    label: str = ""


class Open(msgspec.Struct):
    xs: list[float]
    by: dict[str, float]


class Circle(msgspec.Struct, tag=True):
    radius: float


class Dot(msgspec.Struct, tag=True):
    name: str


class Wide(Circle, tag="Circle"):
    """Written like a Circle in a field of one."""


class Point(NamedTuple):
    name: str
    y: float


class Out(msgspec.Struct):
    key: str
    plain: float
    maybe: float | None
    inner: Inner
    open: Open
    point: Point
    shapes: list[Circle | Dot]
    by_number: dict[float, int]
    anything: Any


class Told(msgspec.Struct):
    x: float
    xs: tuple[float, ...]


_interpreter = Random(0)


def nothing() -> float:
    """A NaN whose bits differ from call to call, and from run to run."""
    return nan_of(_interpreter)


def bits(*values: float | None) -> str:
    """What a handler that looks at the bits of its state would find."""
    return " ".join("-" if one is None else pack_float(one).hex() for one in values)


def nan_app() -> tr.App:
    app = tr.App("nans", partitions=1)
    events = app.topic("events", Event, key="key", event_time="at")
    outs = app.topic("outs", Out, key="key", format="msgpack")

    @app.actor
    class Fixed(tr.Actor):
        """All of its types have guards: its live instances are never decoded."""

        plain: float = 0.0
        maybe: float | None = None
        number: float | str = 0.0
        inner: Inner | None = None
        pair: tuple[float, int] = (0.0, 0)
        several: tuple[float, ...] = ()
        point: Point | None = None
        found: str = ""
        entries: tr.MapState[int, float]
        inners: tr.ListState[Inner]

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            at = event.at % 3
            self.found = bits(
                self.plain,
                self.maybe,
                self.pair[0],
                *self.several,
                *(one for one in (self.number,) if not isinstance(one, str)),
                None if self.inner is None else self.inner.x,
                None if self.point is None else self.point.y,
                *self.entries.values(),
                *(one.x for one in self.inners),
            )
            self.plain = self.maybe = self.number = nothing()
            self.inner, self.pair, self.point = Inner(nothing()), (nothing(), at), Point("p", nothing())
            self.several = (nothing(), -0.0, -math.inf, nothing())
            self.entries[at] = nothing()
            self.inners.append(Inner(nothing(), "kept"))
            if len(self.inners) > 3:
                self.inners.popleft()
            ctx.send(Loose, event.key, Told(nothing(), (nothing(), 1.0)))

    @app.actor
    class Loose(tr.Actor):
        """Some of its types have none: it is decoded when a handler returns."""

        plain: float = 0.0
        several: list[float] = []
        by: dict[str, list[float]] = {}
        open: Open | None = None
        shapes: list[Circle | Dot] = []
        found: str = ""
        entries: tr.MapState[int, list[float]]
        kept: tr.ListState[Open]

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            at = ctx.event_time % 3
            self.found = bits(
                self.plain,
                *self.several,
                *(one for some in self.by.values() for one in some),
                *(self.open.xs if self.open is not None else ()),
                *(one.radius for one in self.shapes if isinstance(one, Circle)),
                *(one for some in self.entries.values() for one in some),
                *(one.xs[0] for one in self.kept),
                message.x,
                *message.xs,
            )
            self.plain = nothing()
            self.several = [nothing(), math.inf, -0.0]
            self.by[str(at)] = [nothing()]
            self.open = Open([nothing()], {"a": nothing()})
            self.shapes = [Circle(nothing()), Dot("d"), Wide(nothing())]
            self.entries[at] = [nothing()]
            self.kept.append(Open([nothing()], {}))
            if len(self.kept) > 3:
                self.kept.popleft()
            out = Out(
                ctx.key,
                nothing(),
                nothing(),
                Inner(nothing()),
                self.open,
                Point("p", nothing()),
                [],
                {},
                None,
            )
            out.shapes = [Wide(nothing()), Dot("d")]
            out.by_number = {nothing(): 1, 2.0: 2}
            out.anything = {"deep": [nothing(), b"\xcb\xff\xf8"]}
            ctx.emit(outs, out)

    return app


app = nan_app()
