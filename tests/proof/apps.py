"""Apps for the proof: every way to declare an input, and two actors that run programs.

``Rich`` has everything that is durable; it is a class whose instances are replaced by what their encoding says.
``Plain`` has fields that need no more than a look at their types, which the core handles on another, faster path.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import tailrace as tr
from tests.proof import operations
from tests.proof.programs import Op


class Variant(NamedTuple):
    """What is declared differently from app to app."""

    inputs: int
    partitions: int
    late: str
    out_of_order: int
    watermark: str
    on_error: Literal["stop", "dead-letter", "dead-letter-all"]
    messages: bool
    lean: bool
    """Whether "events" goes to ``Plain`` alone: one route, which the core takes on its shortest path."""
    order: Literal["event-time", "arrival"] = "arrival"


@lru_cache(maxsize=64)
def build(variant: Variant) -> operations.Model:
    """The app of a variant."""
    app = tr.App("proof", partitions=variant.partitions, on_error=variant.on_error)
    lates = app.topic("lates", operations.Event, key="key", event_time="at")
    app.topic("results", operations.Result, key="key")
    app.topic("notes", operations.Result, key="key")
    out_of_order = f"{variant.out_of_order}ms"
    late: Any = lates if variant.late == "route" else variant.late
    events = app.topic(
        "events", operations.Event, key="key", event_time="at", out_of_order=out_of_order, late=late
    )
    topics: list[tr.Topic[Any, Any]] = [events]
    if variant.inputs > 1:
        watermark: Any = variant.watermark == "events" or variant.watermark
        late_changes = app.topic("late-changes", operations.Change, key="key", event_time="at")
        topics.append(
            app.topic(
                "changes",
                operations.Change,
                key="key",
                event_time="at",
                out_of_order=out_of_order,
                watermark=watermark,
                late=late_changes if variant.late == "route" else late,
            )
        )
    if variant.inputs > 2:
        topics.append(
            app.topic(
                "arrivals",
                operations.Event,
                key="key",
                event_time=tr.ARRIVAL_TIME if variant.out_of_order else tr.RECORD_TIME,
                watermark=bool(variant.out_of_order),
                format="msgpack",
            )
        )
    side: tr.Stream[Any] = app.stream("side", operations.Chained)
    taken: Any = topics
    may_fail = variant.on_error != "stop"
    for_rich = taken[1:] if variant.lean else taken

    @app.process(side if variant.lean else events)
    def audit(event: Any, ctx: tr.Context[str]) -> None:
        if event.program and event.program[0].kind == "emit":
            ctx.emit(app.topics["notes"], operations.Result(ctx.key, len(event.program), str(ctx.uuid())))
        if event.program and event.program[-1].kind == "chain" and not variant.lean:
            ctx.emit(side, operations.Chained(event.program[:2]))

    @app.process(side)
    def overhear(event: operations.Chained, ctx: tr.Context[str]) -> None:
        if event.level == 2:
            ctx.emit(app.topics["notes"], operations.Result(ctx.key, 2, str(ctx.random.random())))

    @app.actor(name="rich")
    class Rich(operations.RichInterpreter, tr.Actor, order=variant.order):
        n: int = 0
        digest: int = 0
        ratio: float = 0.0
        loose: float | None = None
        box: operations.Box = tr.field(default_factory=operations.Box)
        nest: list[operations.Box] = tr.field(default_factory=list)
        at: datetime | None = None
        pair: tuple[int, str] = (0, "")
        some: int | str | list[int] | None = None
        scripts: dict[str, tuple[Op, ...]] = tr.field(default_factory=dict)
        fading: list[int] = tr.field(default_factory=list, ttl="3s")
        flickering: str = tr.field(default="", ttl="1s", ttl_time="processing")
        entries: tr.MapState[str, int]
        boxes: tr.MapState[int, operations.Box]
        brief: tr.MapState[int, list[int]] = tr.field(ttl="2s")
        blink: tr.MapState[int, int] = tr.field(ttl="1s", ttl_time="processing")
        items: tr.ListState[list[int]]
        queue: tr.ListState[int]

        @tr.process(*for_rich, side)
        def handled(self, event: Any, ctx: tr.Context[str]) -> None:
            if isinstance(event, operations.Chained):
                self.observe(ctx, f"chained {event.level}", event.program)
                self.run(event.program, ctx, model, event.level)
                return
            self.observe(ctx, "event", event.program)
            if isinstance(event, operations.Change):
                self.box = event.box
                event.box.items.append(self.n)
                event.program = event.program[:3]
            self.run(event.program, ctx, model)

        def due(self, ctx: tr.Context[str], domain: str) -> None:
            self.observe(ctx, "timer")
            name = ctx.timer_name
            key = domain + (name if name is not None else str(ctx.event_time if domain == "e" else ctx.now))
            self.run(self.scripts.pop(key, ()), ctx, model)

        @tr.on_timer
        def unnamed(self, ctx: tr.Context[str]) -> None:
            self.due(ctx, "e")

        @tr.on_timer("a")
        def named_a(self, ctx: tr.Context[str]) -> None:
            self.due(ctx, "e")

        @tr.on_timer("b")
        def named_b(self, ctx: tr.Context[str]) -> None:
            self.due(ctx, "e")

        @tr.on_processing_timer
        def clock_unnamed(self, ctx: tr.Context[str]) -> None:
            self.due(ctx, "p")

        @tr.on_processing_timer("a")
        def clock_a(self, ctx: tr.Context[str]) -> None:
            self.due(ctx, "p")

        @tr.on_processing_timer("b")
        def clock_b(self, ctx: tr.Context[str]) -> None:
            self.due(ctx, "p")

        if variant.messages:

            @tr.on_message
            def pushed(self, message: operations.Push, ctx: tr.Context[str]) -> None:
                self.observe(ctx, "push")
                self.nest = [message.box]
                self.run(message.program, ctx, model)

    @app.actor(name="plain")
    class Plain(operations.PlainInterpreter, tr.Actor, order=variant.order):
        n: int = 0
        digest: int = 0
        pending: int = 0
        share: float = 0.0
        if variant.inputs != 2:
            entries: tr.MapState[int, float]
            queue: tr.ListState[int]

        if variant.inputs < 3:

            @tr.process(events)
            def handled(self, event: operations.Event, ctx: tr.Context[str]) -> None:
                self.observe(ctx, "event", event.program)
                self.run(event.program, ctx, model)

        else:

            @tr.process(*taken[:2])
            def handled_two(self, event: Any, ctx: tr.Context[str]) -> None:
                self.observe(ctx, "event", event.program)
                self.run(event.program, ctx, model)

        @tr.process(side)
        def chained(self, event: operations.Chained, ctx: tr.Context[str]) -> None:
            self.observe(ctx, "chained")
            self.run(event.program[:1], ctx, model, event.level)

        @tr.on_timer
        def unnamed(self, ctx: tr.Context[str]) -> None:
            self.observe(ctx, "timer")
            self.pending -= 1
            self.run(operations.fired(self.n, may_fail=may_fail), ctx, model)

        @tr.on_timer("a")
        def named_a(self, ctx: tr.Context[str]) -> None:
            self.observe(ctx, "a")
            self.run(operations.fired(self.n, may_fail=may_fail), ctx, model)

        @tr.on_timer("b")
        def named_b(self, ctx: tr.Context[str]) -> None:
            self.observe(ctx, "b")

        @tr.on_processing_timer
        def clock_unnamed(self, ctx: tr.Context[str]) -> None:
            self.observe(ctx, "clock")

        @tr.on_processing_timer("a")
        def clock_a(self, ctx: tr.Context[str]) -> None:
            self.observe(ctx, "clock a")
            self.run(operations.fired(self.n, may_fail=may_fail), ctx, model)

        @tr.on_processing_timer("b")
        def clock_b(self, ctx: tr.Context[str]) -> None:
            self.observe(ctx, "clock b")

        if variant.messages:

            @tr.on_message
            def pinged(self, message: operations.Ping, ctx: tr.Context[str]) -> None:
                self.observe(ctx, "ping", message.program)
                self.run(message.program, ctx, model)

    model = operations.Model(app, tuple(topics), Rich, Plain)
    # What a program does is only known when it runs.
    anywhere = (app.topics["results"], app.topics["notes"], side)
    messages = (Rich, Plain) if variant.messages else ()
    app.emits = {
        "rich": (*anywhere, *messages),
        "plain": (*anywhere, *messages),
        "audit": anywhere,
        "overhear": anywhere,
    }
    app.plan()
    return model
