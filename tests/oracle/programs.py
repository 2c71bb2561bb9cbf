"""Random programs for one actor: what it declares, what its handlers do, and what happens to it. All of it is data.

The handlers use nothing but ``self`` and ``ctx``, so they run on the actor that ``build`` makes, and on the instances of the oracle.
A program may set timers for later programs only, so every run ends.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgspec

import tailrace as tr
from tests.oracle.rules import NEVER, START_MS, Actor, Field, Input, Record

KEYS = ("k", "kk", "", "ü")
HEARTBEAT = "beat"

FIELDS: tuple[tuple[Field, Any], ...] = (
    (Field("n", "value", 0), int),
    (Field("ratio", "value", 0.0), float),
    (Field("words", "value", []), list[int]),
    (Field("others", "value", []), list[int]),
    (Field("tally", "value", {}), dict[str, int]),
    (Field("fading", "value", 0, 60), int),
    (Field("faded", "value", [], 40), list[int]),
    (Field("flick", "value", 0, 900, "processing"), int),
    (Field("marks", "map"), tr.MapState[int, int]),
    (Field("boxes", "map"), tr.MapState[str, list[int]]),
    (Field("brief", "map", None, 50), tr.MapState[int, list[int]]),
    (Field("blink", "map", None, 1_500, "processing"), tr.MapState[int, int]),
    (Field("queue", "list"), tr.ListState[int]),
    (Field("items", "list"), tr.ListState[list[int]]),
)
TYPES = {field.name: type_ for field, type_ in FIELDS}
LEAN = ("n", "marks", "queue")


class Op(NamedTuple):
    """One operation of a program; what ``a`` and ``b`` mean is up to it."""

    kind: str
    a: int = 0
    b: int = 0
    timer: str | None = None


Programs = tuple[tuple[Op, ...], ...]


class Step(NamedTuple):
    """What happens: ``send``, ``wait``, ``idle``, ``publish``, ``restart`` or ``end``."""

    kind: str
    input: str = ""
    ms: int = 0
    records: tuple[Record, ...] = ()


class Case(NamedTuple):
    """An actor, and what happens to it."""

    actor: Actor
    programs: Programs
    steps: tuple[Step, ...]


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    program: int
    number: int


class Said(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    text: str


# --- what handlers do

BY_EVENTS = 5
"""Programs with a lower number are those of events; the others belong to timers."""
UNNAMED, NO_COLON, PROGRAMS = 9, 11, 14


def program_of(timer: str | None) -> int:
    """The number of the program of a timer, by its name."""
    return UNNAMED if timer is None else int(timer.partition(":")[2] or NO_COLON)


def handler(programs: Programs, said: Any = None) -> Callable[[Any, Any, Record | None], None]:
    """All handlers of an actor: for a record, or without one for the timer that has fired."""

    def handle(self: Any, ctx: Any, record: Any) -> None:
        if record is None:
            program, what = program_of(ctx.timer_name), f"timer {ctx.timer_name}"
        else:
            program, what = record.program, f"event {record.number}"
        late = ", late" if ctx.is_late else ""
        watermark = "none" if ctx.watermark == NEVER else ctx.watermark
        self.n += 1
        ctx.emit(said, Said(ctx.key, f"{what} of {ctx.event_time} after {watermark}, {ctx.now}{late}"))
        for op in programs[program]:
            run(op, self, ctx, said)

    return handle


def run(op: Op, self: Any, ctx: Any, said: Any) -> None:
    """Do one operation. One on a field that the actor does not have is left out."""
    name, _, what = op.kind.partition(".")
    if not what:
        about_instance(op, self, ctx, said)
    elif hasattr(self, name):
        CHANGES[op.kind](self, op.a, op.b)


def about_instance(op: Op, self: Any, ctx: Any, said: Any) -> None:
    """Timers, outputs, failures and the end of an instance."""
    match op.kind:
        case "timer":
            ctx.set_timer(ctx.event_time + op.b, op.timer)
        case "clock-timer":
            ctx.set_processing_timer(ctx.now + op.b, op.timer)
        case "cancel":
            ctx.cancel_timer(ctx.event_time + op.b if op.timer is None else op.timer)
        case "cancel-clock":
            ctx.cancel_processing_timer(ctx.now + op.b if op.timer is None else op.timer)
        case "look":
            ctx.emit(said, Said(ctx.key, shown(self)))
        case "range" if hasattr(self, "marks") and hasattr(self, "queue"):
            found = list(self.marks.items(op.a % 3, 3)), len(self.marks), list(reversed(self.queue))
            ctx.emit(said, Said(ctx.key, repr(found)))
        case "emit-at":
            ctx.emit(said, Said(ctx.key, f"at {op.b}"), at=max(0, ctx.event_time + op.b))
        case "fail":
            if self.n % 3 == op.a % 3:
                raise ValueError("told to fail")
        case "start-over":
            kept = list(self.faded) if hasattr(self, "faded") else []
            ctx.clear()
            for one in kept:
                self.faded.append(one)  # the same value as before, and written again
        case "clear":
            ctx.clear()
        case _:
            pass


def shown(self: Any) -> str:
    """All values of an instance."""
    found = list[str]()
    for field, _ in FIELDS:
        if hasattr(self, field.name):
            value = getattr(self, field.name)
            kinds: dict[str, Any] = {"map": lambda of: list(of.items()), "list": list, "value": lambda of: of}
            found.append(f"{field.name} {kinds[field.kind](value)!r}")
    return ", ".join(found)


def _alias(self: Any, a: int, _: int) -> None:
    self.words = self.others = [a]  # one object in two places


def _append(name: str) -> Callable[[Any, int, int], None]:
    def append(self: Any, a: int, _: int) -> None:
        getattr(self, name).append(a)
        del getattr(self, name)[:-3]

    return append


def _assign(name: str) -> Callable[[Any, int, int], None]:
    return lambda self, a, b: setattr(self, name, [a] if isinstance(getattr(self, name), list) else a % 3)


def _again(name: str) -> Callable[[Any, int, int], None]:
    return lambda self, a, b: setattr(self, name, getattr(self, name))


def _put(name: str) -> Callable[[Any, int, int], None]:
    def put(self: Any, a: int, b: int) -> None:
        getattr(self, name)[a % 4] = [b] if name == "brief" else b

    return put


def _pop(name: str) -> Callable[[Any, int, int], None]:
    return lambda self, a, b: getattr(self, name).pop(str(a % 4) if name == "boxes" else a % 4, None)


def _tally(self: Any, a: int, _: int) -> None:
    self.tally[str(a)] = self.tally.pop(str(a), 0) + 1


def _box(self: Any, a: int, b: int) -> None:
    self.boxes[str(a % 4)] = self.words
    self.words.append(b)
    del self.words[:-3]


def _change(name: str) -> Callable[[Any, int, int], None]:
    def change(self: Any, a: int, b: int) -> None:
        found = getattr(self, name).get(str(a % 4) if name == "boxes" else a % 4)
        if found is not None:
            found.append(b)

    return change


def _change_item(self: Any, a: int, b: int) -> None:
    if len(self.items):
        self.items[a % len(self.items)].append(b)


def _take(left: bool) -> Callable[[Any, int, int], None]:
    def take(self: Any, a: int, b: int) -> None:
        if len(self.queue):
            self.queue.popleft() if left else self.queue.pop()

    return take


def _half(self: Any, a: int, _: int) -> None:
    self.ratio = a if a % 2 else self.ratio / 3


CHANGES: dict[str, Callable[[Any, int, int], None]] = {
    "ratio.half": _half,
    "words.append": _append("words"),
    "others.append": _append("others"),
    "words.alias": _alias,
    "tally.add": _tally,
    "fading.assign": _assign("fading"),
    "fading.again": _again("fading"),
    "faded.append": _append("faded"),
    "faded.assign": _assign("faded"),
    "faded.again": _again("faded"),
    "flick.assign": _assign("flick"),
    "flick.again": _again("flick"),
    "marks.put": _put("marks"),
    "marks.pop": _pop("marks"),
    "marks.clear": lambda self, a, b: self.marks.clear(),
    "boxes.put": _box,
    "boxes.change": _change("boxes"),
    "boxes.pop": _pop("boxes"),
    "brief.put": _put("brief"),
    "brief.change": _change("brief"),
    "brief.pop": _pop("brief"),
    "blink.put": _put("blink"),
    "blink.pop": _pop("blink"),
    "queue.append": lambda self, a, b: self.queue.append(a),
    "queue.append-left": lambda self, a, b: self.queue.appendleft(a),
    "queue.take": _take(left=False),
    "queue.take-left": _take(left=True),
    "queue.clear": lambda self, a, b: self.queue.clear(),
    "items.append": lambda self, a, b: self.items.append([a]),
    "items.change": _change_item,
}

_TIMERS = ("timer", "timer", "timer", "clock-timer", "cancel", "cancel-clock")


def _op(random: Random, number: int, changes: list[str]) -> Op:
    later = range(max(BY_EVENTS, number + 1), PROGRAMS)
    names: list[str | None] = [f"{family}:{one}" for one in later for family in ("a", "b", HEARTBEAT)]
    # Few names, so that timers are moved and cancelled.
    names = random.sample(names, k=min(3, len(names)))
    names += [None, None] * (number < UNNAMED) + ["a"] * (number < NO_COLON)
    kind = random.choices(
        (
            *(random.choice(changes), random.choice(_TIMERS), "look"),
            *("range", "fail", "clear", "start-over", "emit-at"),
        ),
        (60, 25 if names else 0, 9, 3, 3, 3, 4 if "faded.append" in changes else 0, 2),
    )[0]
    delays = (0, 1, 5, 20, 20, 45, 90, -1, -30) if "clock" not in kind else (0, 1, 300, 1_000, 2_500, -5)
    return Op(kind, random.randrange(7), random.choice(delays), random.choice(names) if names else None)


def programs_of(random: Random, fields: tuple[Field, ...]) -> Programs:
    """Random programs for an actor with these fields."""
    names = {one.name for one in fields}
    needs = {"words.alias": "others", "boxes.put": "words"}
    changes = [kind for kind in CHANGES if {kind.partition(".")[0], needs.get(kind, "n")} <= names] or [
        "look"
    ]
    return tuple(
        tuple(_op(random, number, changes) for _ in range(random.randrange(1, 7)))
        + (Op("look"),) * (random.random() < 0.5)
        for number in range(PROGRAMS)
    )


# --- what happens


def case_of(seed: int, *, live: bool = False) -> Case:
    """The case of a seed. ``live``: without what only a harness can do."""
    random = Random(f"oracle {seed}")
    names = random.sample(("one", "two", "three"), k=random.choice((1, 1, 2, 2, 3)))
    inputs = tuple(
        Input(
            name,
            random.choice((0, 0, 10, 60)),
            random.choice(("handle", "handle", "drop", "route")),
            random.choice((500, 5_000, 60_000)),
            counts=not at or random.random() < 0.8,
        )
        for at, name in enumerate(names)
    )
    ordered = random.random() < 0.5
    some = random.choice((LEAN, ("n",), TYPES, TYPES, random.sample(tuple(TYPES), k=6)))
    fields = tuple(field for field, _ in FIELDS if field.name in {*some, "n"})
    programs = programs_of(random, fields)
    actor = Actor(inputs, ordered, fields, HEARTBEAT, handler(programs))
    return Case(actor, programs, tuple(_steps(random, inputs, live=live)))


def _steps(random: Random, inputs: tuple[Input, ...], *, live: bool) -> list[Step]:
    at = {one.name: START_MS + random.randrange(30) for one in inputs}
    keys, found, number = KEYS[: random.choice((1, 2, 4))], list[Step](), 0
    speed = random.choice((3, 15, 40))
    for _ in range(random.randrange(3, 12)):
        records = list[Record]()
        for _ in range(random.choice((0, 1, 1, 3, 10))):
            one = random.choice(inputs)
            at[one.name] += random.choice((0, 0, 1, speed, 2 * speed))
            behind_ms = (
                random.randrange(one.disorder_ms + 1) if random.random() < 0.85 else random.randrange(120)
            )
            key = random.choice(keys) if random.random() < 0.97 else None
            number += 1
            records.append(
                Record(one.name, key, at[one.name] - behind_ms, random.randrange(BY_EVENTS), number)
            )
        found.append(Step("send", records=tuple(records)))
        one, chance = random.choice(inputs), random.random()
        if chance < 0.35:
            found.append(Step("wait", ms=random.choice((1, 400, 600, 2_000, 6_000, 61_000))))
        elif chance < 0.45:
            found.append(Step("restart"))
        elif chance < 0.55 and not live and one.counts:
            found.append(Step("idle", one.name))
        elif chance < 0.65 and not live and one.counts:
            found.append(Step("publish", one.name, at[one.name] + random.choice((-20, 5, 30))))
    if random.random() < 0.4:
        return found
    # A worker reads the clock when it takes a record. What fires at the end has that reading.
    last = Record(inputs[0].name, keys[0], at[inputs[0].name], 0, number + 1)
    return [*found, Step("send", records=(last,)), Step("end")]


# --- the actor


def build(case: Case, began: Callable[[], None]) -> tr.App:
    """An app with the actor of a case. ``began`` is called when one of its handlers is."""
    app = tr.App("oracle", partitions=1, on_error="dead-letter")
    lates, said = app.topic("lates", Event), app.topic("said", Said)
    handle = handler(case.programs, said)

    def topic(one: Input) -> tr.Topic[Event, str]:
        late: Any = lates if one.late == "route" else one.late
        return app.topic(
            one.name,
            Event,
            out_of_order=one.disorder_ms,
            late=late,
            idle_after=one.idle_after_ms,
            watermark=one.counts,
        )

    def on_event(self: Any, event: Any, ctx: Any) -> None:
        began()
        handle(self, ctx, event)

    def on_timer() -> Callable[[Any, Any], None]:
        def fired(self: Any, ctx: Any) -> None:
            began()
            handle(self, ctx, None)

        return fired

    def body(namespace: dict[str, Any]) -> None:
        namespace["__module__"] = __name__
        namespace["__annotations__"] = {one.name: TYPES[one.name] for one in case.actor.fields}
        for one in case.actor.fields:
            options: dict[str, Any] = (
                {} if one.ttl_ms is None else {"ttl": one.ttl_ms, "ttl_time": one.ttl_of}
            )
            if one.kind == "value":
                options["default_factory"] = partial(deepcopy, one.default)
            namespace |= {one.name: tr.field(**options)} if options else {}
        namespace["on_event"] = tr.process(*map(topic, case.actor.inputs))(on_event)
        namespace["unnamed"] = tr.on_timer(on_timer())
        namespace["unnamed_clock"] = tr.on_processing_timer(on_timer())
        for family in ("a", "b", HEARTBEAT):
            namespace[family] = tr.on_timer(family, unless_ended=family == HEARTBEAT)(on_timer())
            namespace[f"{family}_clock"] = tr.on_processing_timer(family)(on_timer())

    order = "event-time" if case.actor.ordered else "arrival"
    keeper: Any = types.new_class("Keeper", (tr.Actor,), {"order": order}, body)
    app.actor(emits=[said])(keeper)
    return app
