"""Topics and streams: the sources and targets of events.

Both are edges of the dataflow: a handler takes their events, ``ctx.emit`` adds events. A topic is stored in
the log. A stream exists only within a step: an event emitted to it is handled at once, under the same key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Generic, Literal, TypedDict, get_args, get_origin

from typing_extensions import TypeVar

from tailrace.core.declare.annotations import members_of
from tailrace.core.declare.event_codec import EventCodec, RecordFormat
from tailrace.core.declare.event_time import RECORD_TIME, TimeSource, seconds_taken_for_ms, time_reader
from tailrace.core.durations import SECONDS_FIRST_MS, SECONDS_LAST_MS, spelled
from tailrace.core.errors import BadRecordError, UsageError
from tailrace.core.values.event_fields import kind_of
from tailrace.core.values.key_paths import plain_key
from tailrace.core.values.keys import KeyCodec, key_codec_for
from tailrace.core.values.models import ModelCodec
from tailrace.core.values.types import is_immutable, spell

E = TypeVar("E")
K = TypeVar("K", default=Any)

OnError = Literal["stop", "dead-letter", "dead-letter-all"]
ON_ERROR: Final = get_args(OnError)
Order = Literal["event-time", "arrival"]
ORDERS: Final = get_args(Order)
TimeKind = Literal["field", "record", "arrival"]
WatermarkKind = Literal["events", "none", "upstream"]
Late = Literal["handle", "drop", "route"]


class Edge(Generic[E, K]):
    """A topic or stream of events E with keys K, which handlers can take and ``ctx.emit`` can emit to."""

    __slots__ = (
        "app",
        "is_inside",
        "is_stream",
        "key_names",
        "key_type",
        "name",
        "type",
        "type_name",
        "types",
    )
    is_table: ClassVar[bool] = False

    def __init__(self, app: str, name: str, type: Any, key_type: Any, *, is_stream: bool) -> None:
        self.app = app
        self.is_stream = self.is_inside = is_stream
        """``is_inside``: also of a topic that its app reads itself, since the plan was made."""
        self.name = name
        self.type = type
        self.key_type = plain_key(key_type)
        self.key_names: tuple[str, ...] = ()
        """The fields that are the parts of the key, if it has several; empty if they are not known."""
        self.types = frozenset(get_origin(member) or member for member in members_of(type))
        """The classes of its events. Events of a subclass do not belong to it."""
        self.type_name = spell(type)

    def __repr__(self) -> str:
        return f"<{self.__class__.__name__.lower()} {self.name!r} of {self.type_name}>"


class Stream(Edge[E, K]):
    """A stream within a step, made by ``App.stream``.

    Pass it to ``@tr.process`` and to ``ctx.emit``, like a topic.
    """

    __slots__ = ("index",)

    def __init__(self, app: str, name: str, type: Any, key_type: Any = Any) -> None:
        super().__init__(app, name, type, key_type, is_stream=True)
        self.index = -1


class TableOptions(TypedDict, Generic[E], total=False):
    """The arguments of ``App.table`` besides name, type and key."""

    event_time: str | TimeSource | Callable[[E], int | datetime | None]
    out_of_order: str | int | timedelta
    watermark: bool | Literal["upstream"]
    idle_after: str | int | timedelta
    ahead_of_clock: str | int | timedelta | None
    on_error: OnError | None
    format: Literal["json", "msgpack"] | RecordFormat
    time_range: tuple[int | datetime, int | datetime]


class TopicOptions(TableOptions[E], total=False):
    """The arguments of ``App.topic`` besides name, type and key."""

    late: Literal["handle", "drop"] | Topic[E, Any]
    repartition: bool
    broadcast: bool


@dataclass(frozen=True, slots=True)
class TopicDeclaration:
    """The options of a topic, with defaults applied. Instants and durations are milliseconds."""

    format: str
    key: Any
    event_time: Any
    time_kind: TimeKind
    out_of_order_ms: int
    watermark: WatermarkKind
    follows: bool
    """The watermark is not declared: it follows the topic's writers if the app has any, else its events."""
    late: Late
    late_is_declared: bool
    """Whether ``late=`` was given: then the app expects late events."""
    late_topic: Topic[Any, Any] | None
    idle_after_ms: int
    ahead_of_clock_ms: int | None
    """How far an event time may be ahead of the clock; None: any time."""
    on_error: OnError | None
    repartition: bool
    time_min_ms: int
    time_max_ms: int
    refuse_seconds: bool
    """Refuse event times that look like seconds: no ``time_range`` is declared that allows them."""
    broadcast: bool = False
    """Every task has a table of the whole topic; see ``broadcast``. Then ``repartition`` is true, too."""
    record_format: RecordFormat | None = None
    """What makes the codec, if ``format`` is neither JSON nor MessagePack."""


class Topic(Edge[E, K]):
    """A topic of the log whose records hold events of type E under keys of type K. Made by ``App.topic``.

    Pass it to ``@tr.process``, to ``ctx.emit``, and to the methods of a test harness. ``name`` is its name in
    the log, ``type`` the type of its events. ``encode`` and ``decode`` convert an event to and from a
    record's value, ``encode_key`` gives the record's key. ``key_of`` is None for a topic without a key.
    """

    def __init__(
        self,
        app: str,
        name: str,
        type: Any,
        *,
        partitions: int,
        key_type: Any,
        key_of: Callable[[Any], Any] | None,
        settings: TopicDeclaration,
    ) -> None:
        super().__init__(app, name, type, key_type, is_stream=False)
        self.partitions = partitions
        key: Any = settings.key
        self.key_names = key if key.__class__ is tuple else ()
        self.settings = settings
        self.codec: EventCodec | ModelCodec = (
            ModelCodec(name, type, settings.format)
            if kind_of(type) == "model"
            else settings.record_format.codec(name, type)
            if settings.record_format is not None
            else EventCodec(name, type, settings.format)
        )
        self.encode, self.decode = self.codec.encode, self.codec.decode
        self.encode_emitted: Callable[[Any], bytes] = self._checked_encode
        """``encode`` for emitted events: bytes must depend on the value alone. Checked at the first use."""
        self.immutable = is_immutable(type)
        self.key_of = key_of
        self.key_codec: KeyCodec = key_codec_for(bytes if key_of is None else key_type)
        self.encode_key = _key_encoder(key_of, self.key_codec)
        self.text_of = key_of if self.key_codec.type is str else None
        """``key_of`` if it gives a str, whose bytes need no more than ``str.encode``."""
        self.time_of: Callable[[Any], int | None] | None = None
        if settings.time_kind == "field":
            self.time_of = time_reader(type, settings.event_time, f"the topic {name!r}")

    def checked_time(self, event: E, now_ms: int) -> int | None:
        """The time of an event that is to be written, as tasks check it when they read it; None if it is not in the event.

        Raises BadRecordError.
        """
        if self.time_of is None:
            return None
        settings, time_ms = self.settings, self.time_of(event)
        if time_ms is None:
            raise BadRecordError("the event has no event time")
        if not settings.time_min_ms <= time_ms <= settings.time_max_ms:
            raise BadRecordError(
                f"the event time {time_ms} ms is outside of {settings.time_min_ms} to {settings.time_max_ms} ms"
            )
        if settings.refuse_seconds and SECONDS_FIRST_MS <= time_ms <= SECONDS_LAST_MS:
            what, hint = seconds_taken_for_ms(time_ms, settings.event_time)
            raise BadRecordError(f"{what}. {hint.removesuffix('.')}")
        most_ms = settings.ahead_of_clock_ms
        if settings.watermark == "events" and most_ms is not None and time_ms > now_ms + most_ms:
            raise BadRecordError(
                f"the event time {time_ms} ms is more than {spelled(most_ms)} ahead of the clock, and a service would refuse it. If it is "
                "right, give the topic a larger ahead_of_clock, or None"
            )
        return time_ms

    def _checked_encode(self, event: Any) -> bytes:
        self.codec.check_emitted()
        self.encode_emitted = self.encode
        return self.encode(event)

    def internal(self, name: str) -> Topic[E, K]:
        """The same topic under another name, to which records are forwarded with the declared key."""
        settings = self.settings
        if settings.record_format is not None:
            settings = replace(settings, format="msgpack", record_format=None)
        if settings.time_kind == "arrival":  # the timestamp of the forwarded record is the arrival time
            settings = replace(settings, time_kind="record", event_time=RECORD_TIME)
        if settings.watermark != "none":
            # The disorder was allowed for where the record arrived, and the forwarded topic follows that
            # watermark.
            settings = replace(settings, watermark="events", follows=True, out_of_order_ms=0)
        topic: Topic[E, K] = Topic(
            self.app,
            name,
            self.type,
            partitions=self.partitions,
            key_type=self.key_type,
            key_of=self.key_of,
            settings=settings,
        )
        return topic


class Table(Topic[E, K]):
    """A topic that keeps the last event of each key, as its value: see ``docs/tables.md``. Made by ``App.table``.

    ``ctx.emit`` sets the value of the event's key, ``ctx.delete`` deletes it. ``@tr.process`` takes the values as
    they are set, ``@tr.on_delete`` the deletions.
    """

    is_table = True


def refuse_unless_table(edge: Any, does: str) -> None:
    """Raise UsageError for what is not a table. ``does`` begins the message."""
    if not getattr(edge, "is_table", False):
        raise UsageError(
            f"{does} {edge!r}, which is not a table",
            hint="Declare it with app.table: other topics keep every event, and none can be deleted.",
        )


def _key_encoder(key_of: Callable[[Any], Any] | None, codec: KeyCodec) -> Callable[[Any], bytes | None]:
    if key_of is None:
        return lambda _: None
    encode, read = codec.encode, key_of
    if codec.type is not str:
        return lambda event: encode(read(event))

    def encode_text(event: Any) -> bytes:
        key = read(event)
        return key.encode() if type(key) is str else encode(key)

    return encode_text
