"""A task on its own, and actors that do what the event tells them, the forbidden included: for tests of bad
input.
"""

from __future__ import annotations

from typing import Any

import msgspec

import tailrace as tr
from tailrace.core import rows
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.records import InputRecord, Output
from tailrace.state import MemoryStore

NINE_THOUSAND = 253_370_764_800_000  # some day in the year 9999


class Box(msgspec.Struct):
    items: list[int]


class Circle(msgspec.Struct, tag="circle", frozen=True):
    key: str
    at: int | None = 1_000
    do: str = ""
    where: str | None = None


class Square(msgspec.Struct, tag="square"):
    key: str | None
    at: int | None = 1_000
    do: str = ""
    box: Box = msgspec.field(default_factory=lambda: Box([]))


class Note(msgspec.Struct):
    text: str


Shape = Circle | Square


class Broken(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


KEPT: list[Any] = []
"""What handlers that break the rules keep for later."""


def shapes_app(on_error: Any = "dead-letter-all", key: Any = "key") -> tr.App:
    app = tr.App("shapes", partitions=1, on_error=on_error)
    shapes: tr.Topic[Shape, str] = app.topic("shapes", Shape, key=key, key_type=str, event_time="at")
    notes = app.topic("notes", Note, key=lambda note: note.text, key_type=str)

    @app.actor(name="pile")
    class Pile(tr.Actor):
        n: int = 0
        words: list[str] = tr.field(default_factory=list)
        box: Box | None = None
        fading: str = tr.field(default="", ttl="1h")
        count: tr.MapState[str, int]
        boxes: tr.MapState[str, Box]
        queue: tr.ListState[list[int]]

        @tr.process(shapes)
        def take(self, event: Shape, ctx: tr.Context[str]) -> None:
            self.n += 1
            self.words.append(event.do)
            self.count["n"] = self.n
            self.boxes.get("kept", Box([])).items.append(self.n)
            if event.do == "kept":
                self.boxes["kept"] = Box([0])
                self.queue.append([1])
                ctx.set_timer(10_000, name="late")
            if self.queue:
                self.queue[0].append(self.n)
            if event.do.startswith("fail"):
                self.wreck(event, ctx)
            elif event.do == "loop":
                ctx.set_timer(ctx.event_time, name="loop")
            elif event.do == "timer fails":
                ctx.set_timer(ctx.event_time - 5, name="fails")
            elif isinstance(event, Square) and event.do == "keep event":
                KEPT.append(event)
                self.box = event.box
            elif event.do == "change event":
                KEPT[0].box.items.append(99)
            elif event.do == "keep context":
                KEPT.append(ctx)

        def wreck(self, event: Shape, ctx: tr.Context[str]) -> None:
            """Leave traces everywhere, and fail."""
            self.fading = "gone"
            self.words.clear()
            self.box = Box([1])
            self.count.clear()
            self.count["other"] = 1
            self.queue.clear()
            self.queue.append([7])
            ctx.cancel_timer("late")
            ctx.set_timer(5_000, name="late:too")
            ctx.set_timer(5_001)
            ctx.emit(notes, Note("unheard"))
            ctx.send(Pile, "other", Note("unheard"))
            ctx.metrics.count("wrecks")
            if event.do == "fail and clear":
                ctx.clear()
                self.n = 3
            elif event.do == "fail to seal":
                wrong: Any = "three"
                self.n = wrong
                return
            elif event.do == "fail without words":
                raise Broken
            elif event.do == "fail badly":
                raise ValueError("\ud800")
            raise ValueError("told to fail")

        @tr.on_timer("late")
        def late(self, ctx: tr.Context[str]) -> None:
            ctx.emit(notes, Note("late"))

        @tr.on_timer("loop")
        def loop(self, ctx: tr.Context[str]) -> None:
            self.n += 1
            ctx.set_timer(ctx.event_time, name="loop")

        @tr.on_timer("fails")
        def fails(self, ctx: tr.Context[str]) -> None:
            self.wreck(Circle(ctx.key, do="fail"), ctx)

        @tr.on_timer
        def unnamed(self, ctx: tr.Context[str]) -> None:
            ctx.emit(notes, Note("unnamed"))

        @tr.on_message
        def told(self, message: Note, ctx: tr.Context[str]) -> None:
            self.words.append(message.text)

        @tr.query
        def spoil(self, how: str) -> int:
            if how == "fail":
                self.n = 99
                raise ValueError("no answer")
            if how == "change":
                self.words.append("from a query")
            elif how == "entry":
                self.count["n"] = 99
            elif how == "inside":
                self.boxes["kept"].items.append(99)
            return self.n

    return app


def leaky_app(field: str) -> tr.App:
    """A handler that changes the state of the key it has seen before, in a field that is fixed or that is
    not.
    """
    app = tr.App("shapes", partitions=1, on_error="dead-letter")
    shapes: tr.Topic[Shape, str] = app.topic("shapes", Shape, key="key", event_time="at")

    class Common:
        __slots__ = ()

        def taken(self: Any, event: Shape) -> None:
            self.n += 1
            if event.do == "keep":
                KEPT.append(self if field == "n" else self.words)
            elif event.do == "change" and field == "n":
                KEPT[0].n += 1
            elif event.do == "change":
                KEPT[0].append("not mine")

    if field == "n":

        @app.actor(name="numbers")
        class Numbers(Common, tr.Actor):
            n: int = 0

            @tr.process(shapes)
            def take(self, event: Shape, ctx: tr.Context[str]) -> None:
                self.taken(event)

    else:

        @app.actor(name="words")
        class Words(Common, tr.Actor):
            n: int = 0
            words: list[str] = tr.field(default_factory=list)

            @tr.process(shapes)
            def take(self, event: Shape, ctx: tr.Context[str]) -> None:
                self.taken(event)

    return app


class Bench:
    """A task on its own; what it has committed."""

    def __init__(self, app: tr.App, **settings: Any) -> None:
        self.app = app
        self.store = MemoryStore()
        self.outputs: list[Output] = []
        self.measured: list[Any] = []
        self.settings = TaskSettings(**settings)
        self.offset = 0
        self.task = self.new_task()

    def new_task(self) -> Task:
        return Task(self.app.plan(), 0, self.store, self.store.cut, lineage=b"x", settings=self.settings)

    def send(self, *values: Shape | bytes | None) -> None:
        records: list[InputRecord] = []
        for value in values:
            data = msgspec.json.encode(value) if isinstance(value, msgspec.Struct) else value
            records.append(InputRecord(self.offset, 77, b"the record's key", data, (("h", b"1"),)))
            self.offset += 1
        heads = self.task.decode(0, records)
        taken = 0
        while taken < len(heads):
            taken = self.task.run(0, heads, taken)
            while self.task.draining:
                self.task.drain()

    def commit(self) -> None:
        self.outputs += self.task.take_outputs()
        batch = self.task.commit_batch()
        self.store.write(batch.rows | batch.index_rows, batch.cut)
        self.task.committed()
        self.measured += batch.measurements

    def state(self) -> dict[bytes, bytes]:
        """The rows but those of the index, which may hold what is looked at in vain."""
        return {row: value for row, value in self.store.rows() if row[:1] == rows.STATE}

    def letters(self) -> list[Output]:
        return [one for one in self.outputs if one.topic == "shapes.dead-letters"]


def header(output: Output, name: str) -> str:
    return dict(output.headers)[f"tailrace-{name}"].decode()
