"""What the actors of the proof do with the programs that events carry: every operation, as a method.

The actors keep a *digest* of everything their handlers were told, in the order they were told it, so that any difference
in time, order, lateness, randomness or state shows in their rows.
"""

import math
import struct
from datetime import UTC, datetime, timedelta
from itertools import repeat
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

import tailrace as tr
from tailrace.core.values.canonical_nan import NAN_BYTES, pack_float
from tests.proof.programs import TIMER_NAMES, Op, Program

KEYS = ("", "k", "kk", "key-3", "nul\0", "ünïcode", "last")


class Box(msgspec.Struct):
    """Something that can be changed in place, at two depths."""

    label: str = ""
    items: list[int] = []
    share: float = 0.0


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int
    program: tuple[Op, ...] = ()


class Change(msgspec.Struct):
    """An event that a handler can keep and change, the one with a time that may be absent and a watermark of its own."""

    key: str
    at: int | None
    program: tuple[Op, ...] = ()
    box: Box = msgspec.field(default_factory=Box)
    mark: int | None = None


class Result(msgspec.Struct, frozen=True):
    key: str
    digest: int
    said: str = ""


class Chained(msgspec.Struct):
    program: tuple[Op, ...]
    level: int = 0


class Ping(msgspec.Struct, frozen=True):
    program: tuple[Op, ...]


class Push(msgspec.Struct):
    """A message that its receiver keeps and changes."""

    program: tuple[Op, ...]
    box: Box


class Chance:
    """What is not on the tape: a handler that fails once and not again (a flaky network, say)."""

    fires = staticmethod(lambda: False)


class Flaky(Exception):
    """A failure that depends on nothing an actor may depend on."""


_interpreter = Random(0)


def nan_of(random: Random) -> float:
    """A NaN with any bits, as the interpreter or the processor may give it."""
    sign, quiet = random.getrandbits(1) << 63, random.getrandbits(1) << 51
    payload = random.choice((0, 0, 1, random.getrandbits(51))) or (not quiet)
    (value,) = struct.unpack(">d", (sign | 0x7FF << 52 | quiet | payload).to_bytes(8, "big"))
    assert math.isnan(value)
    return float(value)


def a_nan() -> float:
    """A NaN whose bits differ from call to call, and from run to run. They are not the canonical ones."""
    return next(filter(lambda one: pack_float(one) != NAN_BYTES, map(nan_of, repeat(_interpreter))))


def bits_of(value: float) -> bytes:
    """The bits of a float. Until a call ends, a handler may find others than the canonical NaN's: these are one."""
    bits = pack_float(value)
    return b"another NaN" if math.isnan(value) and bits != NAN_BYTES else bits


class Model(NamedTuple):
    """An app, and what a test needs to feed it."""

    app: tr.App
    topics: tuple[tr.Topic[Any, Any], ...]
    rich: type[tr.Actor]
    plain: type[tr.Actor]


class Interpreter:
    """What both actors do with a program. ``ctx`` and ``self`` are all it uses."""

    __slots__ = ()

    def observe(self: Any, ctx: tr.Context[str], tag: str, program: Program = ()) -> None:
        if program and program[0].kind == "quiet":
            return  # so that a handler may change a timer or an entry and nothing else
        seen = (
            *(self.digest, tag, ctx.key, ctx.event_time),
            *(ctx.watermark, ctx.now, ctx.is_late, ctx.timer_name),
        )
        self.digest = crc32(repr(seen).encode())
        self.n += 1
        ctx.metrics.count("handled")

    def note(self: Any, value: object) -> None:
        self.digest = crc32(repr((self.digest, value)).encode())

    def run(self: Any, program: Program, ctx: tr.Context[str], model: Model, level: int = 0) -> None:
        for number, op in enumerate(program):
            getattr(self, "op_" + op.kind.replace("-", "_"), self.no_such)(
                op, ctx, model, number + 10 * level
            )

    def no_such(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.n += 1

    def op_quiet(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        pass

    # --- outputs, randomness ---

    def op_emit(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        key = KEYS[op.a % len(KEYS)]
        ctx.emit(model.app.topics["results"], Result(key, self.digest, f"{ctx.key} {ctx.timer_name} {at}"))

    def op_note(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        ctx.emit(model.app.topics["notes"], Result(ctx.key, self.digest, str(ctx.random.random())))

    def op_chain(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        if at < 30:
            ctx.emit(model.app.streams["side"], Chained(op.then, at // 10 + 1))

    def op_random(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.note(ctx.random.random())

    def op_uuid(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.note(ctx.uuid())

    # --- messages ---

    def op_send(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        key = KEYS[op.a % len(KEYS)]
        if op.b % 2:
            ctx.send(model.plain, key, Ping(op.then))
        else:
            push = Push(op.then, Box("sent", [op.a]))
            ctx.send(model.rich, key, push)
            push.box.items.append(99)  # after it was sent: nobody may see it

    def op_send_self(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        ctx.send(model.plain, ctx.key, Ping(op.then))

    # --- timers ---

    def op_timer(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        name = TIMER_NAMES[op.a % len(TIMER_NAMES)]
        time_ms = ctx.event_time + op.b
        ctx.set_timer(time_ms, name)
        self.remember(f"e{time_ms if name is None else name}", op.then)

    def op_past_timer(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        name = TIMER_NAMES[op.a % len(TIMER_NAMES)]
        time_ms = max(0, min(ctx.event_time, ctx.watermark) - op.b)
        ctx.set_timer(time_ms, name)
        self.remember(f"e{time_ms if name is None else name}", op.then)

    def op_clock_timer(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        name = TIMER_NAMES[op.a % len(TIMER_NAMES)]
        time_ms = ctx.now + op.b - 3
        ctx.set_processing_timer(time_ms, name)
        self.remember(f"p{time_ms if name is None else name}", op.then)

    def op_cancel(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        ctx.cancel_timer(TIMER_NAMES[op.a % len(TIMER_NAMES)] or ctx.event_time + op.b)

    def op_cancel_clock(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        ctx.cancel_processing_timer(TIMER_NAMES[op.a % len(TIMER_NAMES)] or ctx.now + op.b)

    def remember(self: Any, name: str, program: Program) -> None:
        raise NotImplementedError

    # --- failures and the end ---

    def op_count(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.n += op.a

    def op_fail(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        raise ValueError(f"told to fail at {at}")

    def op_fail_odd(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        if self.n % 2:
            raise KeyError(f"odd {self.n}")

    def op_flaky(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        if Chance.fires():
            raise Flaky

    def op_clear(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        ctx.clear()

    def op_clear_set(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        ctx.clear()
        self.n = 7


class RichInterpreter(Interpreter):
    """The operations on what only ``Rich`` has."""

    __slots__ = ()
    ratio: float
    loose: float | None

    def remember(self: Any, name: str, program: Program) -> None:
        self.scripts[name] = program

    def op_change_ratio(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.ratio = op.a  # an int in a float field: a restart makes a float of it
        self.loose = op.b

    def op_nan(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.note((bits_of(self.ratio), bits_of(self.loose or 0.0), bits_of(self.box.share)))
        self.ratio = self.loose = self.box.share = a_nan()

    def op_divide_ratio(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.note(self.ratio)
        self.note(self.loose)
        self.ratio /= 3

    def op_box(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.box.items.append(op.a)
        self.box.label += "x"
        del self.box.items[:-4]

    def op_nest(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.nest.append(self.box)  # the same object twice: two after a restart
        del self.nest[:-3]
        self.nest[-1].items.append(op.b)

    def op_keep_event(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.nest.append(Box("kept", self.box.items))
        del self.nest[:-3]

    def op_instant(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        base = datetime(2020, 1, 1, tzinfo=UTC) if self.at is None else self.at
        self.at = base + timedelta(milliseconds=op.b)
        self.pair = (op.a, str(self.at))

    def op_union(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.some = (None, op.a, "text", [op.b])[op.a % 4]

    def op_fail_rich(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        raise ValueError(f"told to fail at {at}")

    # maps

    def op_put(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.entries[f"e{op.a}"] = self.entries.get(f"e{op.a}", 0) + op.b

    def op_drop(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.note(self.entries.pop(f"e{op.a}", -1))
        self.boxes.pop(op.a, None)

    def op_scan(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.note(list(self.entries.items(f"e{op.a % 3}")))
        self.note(list(self.boxes.keys(op.a - 3, op.a)))
        self.note(list(self.brief.items()))
        for box in self.boxes.values():
            box.label = box.label[-3:] + str(op.a)

    def op_box_put(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.boxes[op.a - 3] = self.box
        self.boxes[op.a] = self.box
        self.box.items.append(op.a)

    def op_box_change(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        box = self.boxes.get(op.a)
        if box is not None:
            box.items.append(op.b)
            del box.items[:-4]

    def op_brief(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.brief[op.a] = [op.b]

    def op_blink(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.blink[op.a] = op.b

    def op_clear_map(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        (self.entries, self.boxes, self.brief, self.blink)[op.a % 4].clear()

    # lists

    def op_append(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.items.append([op.a])
        self.items.extend([[op.b], []])

    def op_take_left(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        if self.items:
            self.note(self.items.popleft())

    def op_change_item(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        if self.items:
            self.items[op.a % len(self.items)].append(op.b)
        self.note(list(self.items))

    def op_queue(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.queue.append(op.a)
        if len(self.queue) > 3:
            self.note(self.queue.popleft())
            self.queue[0] = op.b

    # fields that expire

    def op_fade(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.fading.append(op.a)
        del self.fading[:-3]

    def op_fade_same(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.fading = self.fading
        self.note(self.fading)

    def op_flicker(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.flickering = f"f{op.a}"

    def op_wrong_value(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.n = "not a number"


class PlainInterpreter(Interpreter):
    """Timers run a program that their actor has no room for: one that follows from its count."""

    __slots__ = ()

    def remember(self: Any, name: str, program: Program) -> None:
        self.pending += 1

    def op_put(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        if hasattr(type(self), "entries"):
            self.entries[op.a] = self.entries.get(op.a, 0) + op.b
            self.queue.append(op.a)

    def op_drop(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        if hasattr(type(self), "entries"):
            self.note(self.entries.pop(op.a, None))
            self.note(len(self.queue) and self.queue.popleft())

    def op_scan(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        if hasattr(type(self), "entries"):
            self.note((list(self.entries.items()), list(self.queue)))

    def op_nan(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.note(bits_of(self.share))
        self.share = a_nan()
        if hasattr(type(self), "entries"):
            self.note([bits_of(one) for one in self.entries.values()])
            self.entries[op.a] = a_nan()

    def op_wrong_value(self: Any, op: Op, ctx: tr.Context[str], model: Model, at: int) -> None:
        self.n = 1.5


def fired(pending: int, *, may_fail: bool) -> Program:
    """What a timer of ``Plain`` does."""
    failure = "fail-odd" if may_fail else "random"
    kinds = ("emit", "timer", "random", "chain", failure, "note", "clear", "past-timer")
    return tuple(Op(kinds[(pending + at) % len(kinds)], pending % 7, 100 * at) for at in range(pending % 3))
