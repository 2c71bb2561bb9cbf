"""An app whose actors do whatever an event tells them: every kind of state, timer, output and failure."""

from typing import TypeVar

import msgspec

import tailrace as tr
from tailrace.testing import Harness

A = TypeVar("A", bound=tr.Actor)


def held(h: Harness, actor: type[A], key: str) -> A:
    """The committed instance of a key that has one."""
    found = h.state(actor, key)
    assert found is not None
    return found


class Do(msgspec.Struct, frozen=True):
    key: str
    at_ms: int
    what: str
    n: int = 0
    name: str = ""


class Did(msgspec.Struct, frozen=True):
    key: str
    what: str
    seen: str


class Message(msgspec.Struct):
    hops: int
    keys: list[str]


class Box(msgspec.Struct):
    things: list[int] = msgspec.field(default_factory=list)


app = tr.App("everything", on_error="dead-letter-all")
main = app.topic("main", Do, key="key", key_type=str, event_time="at_ms", out_of_order=20)
side = app.topic("side", Do, key="key", key_type=str, event_time="at_ms", out_of_order=5, idle_after="2s")
slow = app.topic("slow", Do, key="key", key_type=str, event_time="at_ms", watermark=False)
too_late = app.topic("too-late", Do, key="key", key_type=str, event_time="at_ms")
strict = app.topic("strict", Do, key="key", key_type=str, event_time="at_ms", late=too_late, idle_after=500)
did = app.topic("did", Did, key="key", key_type=str)
inner = app.stream("inner", Do)


@app.process(main)
def pass_on(event: Do, ctx: tr.Context[str]) -> None:
    if event.what == "chain":
        ctx.emit(inner, event)
    if event.what == "fail-after":
        raise ValueError("after all others")


@app.actor
class Everything(tr.Actor, order="arrival"):
    count: int = 0
    last: Do | None = None
    ratio: float = 0.0
    tags: list[str] = tr.field(default_factory=list)
    nested: dict[str, list[int]] = tr.field(default_factory=dict)
    fading: int = tr.field(default=0, ttl=100)
    fading_by_clock: list[int] = tr.field(default_factory=list, ttl=100, ttl_time="processing")
    boxes: tr.MapState[str, Box]
    numbers: tr.MapState[int, int] = tr.field(ttl=50)
    by_clock: tr.MapState[int, str] = tr.field(ttl=70, ttl_time="processing")
    history: tr.ListState[int]

    @tr.process(main, side, slow, strict, inner)
    def do(self, event: Do, ctx: tr.Context[str]) -> None:
        before = self.last
        self.last = event
        self.count += 1
        n, name = event.n, event.name
        match event.what:
            case "tag":
                self.tags.append(name)
            case "nest":
                self.nested.setdefault(name, []).append(n)
            case "ratio":
                self.ratio = self.count / 3
            case "whole":
                self.ratio = n  # an int where a float is declared
            case "fade":
                self.fading = n
                self.fading_by_clock.append(n)
            case "box":
                box = self.boxes.get(name)
                if box is None:
                    box = self.boxes[name] = Box()
                box.things.append(n)
            case "unbox":
                self.boxes.pop(name, None)
            case "number":
                self.numbers[n] = self.numbers.get(n, 0) + 1
                self.by_clock[n] = name
            case "history":
                self.history.append(n)
            case "timer":
                ctx.set_timer(event.at_ms + n, name or None)
            case "cancel":
                ctx.cancel_timer(name or event.at_ms + n)
            case "alarm":
                ctx.set_processing_timer(ctx.now + n, name or None)
            case "unalarm":
                ctx.cancel_processing_timer(name or ctx.now + n)
            case "chance":
                self.tags = [str(ctx.random.random()), str(ctx.uuid())]
            case "send":
                ctx.send(Everything, name, Message(n % 4, [ctx.key]))
            case "clear":
                ctx.clear()
                if n % 2:
                    self.count = n
                    self.history.append(n)
            case "fail":
                self.tags.append("never")
                self.boxes["never"] = Box()
                self.history.append(-1)
                ctx.set_timer(event.at_ms, "never")
                ctx.send(Everything, "never", Message(0, []))
                ctx.emit(did, Did(ctx.key, "never", ""))
                raise ValueError("as told")
            case _:
                pass
        ctx.metrics.count("done")
        self.report(event.what, ctx, before)

    @tr.on_timer
    def unnamed(self, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.report("unnamed", ctx)

    @tr.on_timer("named")
    def named(self, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.tags.append(str(ctx.timer_name))
        if self.count % 3:
            ctx.set_timer(ctx.event_time + 10, ctx.timer_name)
        if self.count % 7 == 6:
            ctx.send(Everything, str(ctx.timer_name), Message(1, [ctx.key]))
        self.report("named", ctx)

    @tr.on_timer("never")
    def never(self, ctx: tr.Context[str]) -> None:
        raise AssertionError("nobody has set this timer")

    @tr.on_timer("bad")
    def bad(self, ctx: tr.Context[str]) -> None:
        self.history.append(-2)
        raise ValueError("a bad timer")

    @tr.on_processing_timer
    def rang(self, ctx: tr.Context[str]) -> None:
        self.history.append(ctx.now)
        self.report("rang", ctx)

    @tr.on_processing_timer("named")
    def rang_by_name(self, ctx: tr.Context[str]) -> None:
        self.count += 1
        if self.count % 2:
            ctx.set_timer(ctx.event_time + 5, "named")
        self.report("rang-by-name", ctx)

    @tr.on_message
    def got(self, message: Message, ctx: tr.Context[str]) -> None:
        self.count += 1
        message.keys.append(ctx.key)
        if message.hops < 0:
            raise ValueError("a bad message")
        if message.hops:
            ctx.send(Everything, message.keys[0] + "+", Message(message.hops - 1, message.keys))
        self.boxes[",".join(message.keys[-2:])] = Box([message.hops])
        self.report("got", ctx)

    @tr.query
    def describe(self, limit: int = 10) -> str:
        return f"{self.count} {self.tags[:limit]}"

    def report(self, what: str, ctx: tr.Context[str], before: Do | None = None) -> None:
        numbers = ",".join(f"{k}:{v}" for k, v in self.numbers.items())
        boxes = ",".join(f"{k}:{v.things}" for k, v in self.boxes.items())
        seen = (
            f"{self.count} {self.ratio} {self.tags[-3:]} {self.nested} {self.fading} {self.fading_by_clock} "
            f"[{numbers}] [{boxes}] {list(self.history)[-3:]} {len(self.by_clock)} "
            f"{ctx.event_time} {ctx.watermark} {ctx.now} {ctx.is_late} {ctx.timer_name} "
            f"{before and before.what}"
        )
        ctx.emit(did, Did(ctx.key, what, seen))


WHATS = [
    *("tag", "nest", "ratio", "whole", "fade", "box", "unbox", "number", "history", "timer"),
    *("cancel", "alarm", "unalarm", "chance", "send", "clear", "fail", "fail-after", "chain"),
]
NAMES = ("", "named", "named:x", "bad")
