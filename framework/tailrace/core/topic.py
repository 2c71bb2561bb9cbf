"""Topics and streams: where events come from and where they go.

Both are edges of the dataflow: a handler takes their events, ``ctx.emit`` gives events to them. A topic lies in the log.
A stream exists only within a step: what is emitted to it is handled at once, under the same key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, TypedDict, cast, get_origin

import msgspec
from typing_extensions import TypeVar

from tailrace.core.annotations import Scope, members_of
from tailrace.core.durations import duration, to_ms
from tailrace.core.errors import DefinitionError, UsageError
from tailrace.core.event_time import RECORD_TIME, TimeSource, WatermarkGenerator, time_reader
from tailrace.core.key_paths import Path
from tailrace.core.keys import KeyCodec, key_codec_for, key_getter, key_type_of
from tailrace.core.plan import Late, OnError, TimeKind, WatermarkKind
from tailrace.core.types import check_durable, is_immutable, spell

E = TypeVar("E")
K = TypeVar("K", default=Any)

YEAR_2200_MS: Final = 7_258_118_400_000
_PATH: Final[tuple[type[Any], ...]] = (str, tuple)
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")


class Edge(Generic[E, K]):
    """What a handler can take and ``ctx.emit`` can give to: a topic or a stream of events of type E with keys K."""

    __slots__ = ("app", "key_type", "name", "type", "type_name", "types")

    is_stream: bool

    def __init__(self, app: str, name: str, type: Any, key_type: Any) -> None:
        self.app = app
        self.name = name
        self.type = type
        self.key_type = key_type
        self.types = frozenset(get_origin(member) or member for member in members_of(type))
        """The classes of its events; an event of a subclass is another event."""
        self.type_name = spell(type)

    def __repr__(self) -> str:
        return f"<{self.__class__.__name__.lower()} {self.name!r} of {self.type_name}>"


class Stream(Edge[E, Any]):
    """A stream within a step. Made by ``App.stream``; ``index`` is its number in the plan."""

    __slots__ = ("index",)

    is_stream = True

    def __init__(self, app: str, name: str, type: Any) -> None:
        super().__init__(app, name, type, Any)
        self.index = -1


class TopicOptions(TypedDict, Generic[E], total=False):
    """What ``App.topic`` can be told besides name, type and key."""

    event_time: str | TimeSource | Callable[[E], int | datetime | None]
    out_of_order: str | int | timedelta
    late: Literal["handle", "drop"] | Topic[E, Any]
    watermark: bool | Literal["upstream"] | Callable[[E, int], int | None] | WatermarkGenerator
    idle_after: str | int | timedelta
    on_error: OnError | None
    repartition: bool
    format: Literal["json", "msgpack"]
    time_range: tuple[int | datetime, int | datetime]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a topic was declared with, worked out. Instants and durations are milliseconds."""

    format: str
    key: Any
    event_time: Any
    time_kind: TimeKind
    out_of_order_ms: int
    watermark: WatermarkKind
    punctuate: Callable[[Any, int], int | None] | None
    generator: WatermarkGenerator | None
    late: Late
    late_topic: Topic[Any, Any] | None
    idle_after_ms: int
    on_error: OnError | None
    repartition: bool
    time_min_ms: int
    time_max_ms: int


class Topic(Edge[E, K]):
    """A topic of the log, whose records hold events of type E. Made by ``App.topic``.

    ``encode`` and ``decode`` are msgspec's own functions for the record's value; ``encode_key`` gives the record's key.
    ``key_of`` is None for a topic declared without a key.
    """

    __slots__ = (
        "decode",
        "encode",
        "encode_key",
        "immutable",
        "key_codec",
        "key_of",
        "partitions",
        "settings",
        "time_of",
    )

    is_stream = False

    def __init__(
        self,
        app: str,
        name: str,
        type: Any,
        *,
        partitions: int,
        key_type: Any,
        key_of: Callable[[Any], Any] | None,
        settings: TopicSettings,
    ) -> None:
        super().__init__(app, name, type, key_type)
        self.partitions = partitions
        self.settings = settings
        self.encode, self.decode = _codec(type, settings.format)
        self.immutable = is_immutable(type)
        self.key_of = key_of
        self.key_codec: KeyCodec = key_codec_for(bytes if key_of is None else key_type)
        self.encode_key = _key_encoder(key_of, self.key_codec)
        self.time_of: Callable[[Any], int | None] | None = None
        if settings.time_kind == "field":
            self.time_of = time_reader(type, settings.event_time, f"the topic {name!r}")

    def internal(self, name: str) -> Topic[E, K]:
        """A topic of the same events, times and keys, under another name: where records go to be keyed as declared."""
        settings = self.settings
        if (
            settings.time_kind == "arrival"
        ):  # it was noted where the record arrived, and is the forwarded one's timestamp
            settings = replace(settings, time_kind="record", event_time=RECORD_TIME)
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


def declare_topic(
    app: str, partitions: int, name: str, type: Any, key: Any, key_type: Any, options: TopicOptions[Any]
) -> Topic[Any, Any]:
    """Make a topic, or raise DefinitionError or DurableTypeError with the mend."""
    where = f"the topic {name!r}"
    legal_name(name, "a topic")
    _check_type(type, where)
    key_type, key_of = _key(where, type, key, key_type)
    settings = _settings(where, type, key, options)
    return Topic(app, name, type, partitions=partitions, key_type=key_type, key_of=key_of, settings=settings)


def _key(where: str, type: Any, key: Any, key_type: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """The type of a topic's keys, and the function that takes the key out of an event."""
    try:
        if key is None:
            return bytes | None, None
        if isinstance(key, _PATH):
            path = cast("Path", key)
            found, key_of = key_type_of(type, path), key_getter(path)
        elif callable(key):
            found, key_of = _returned(where, key), key
        else:
            raise DefinitionError(
                f"{key!r} is no key", mend="Name a field, a tuple of fields, or give a function of the event."
            )
        if found is None and key_type is None:
            raise DefinitionError(
                "its key is a function that does not say what it returns",
                mend="Annotate its return type, or add key_type=str (or whatever it is).",
            )
        if key_type is not None and found is not None and found != key_type:
            raise DefinitionError(
                f"key_type is {spell(key_type)}, but the key {key!r} is {spell(found)}",
                mend=f"Write key_type={spell(found)}, or leave it out.",
            )
        found = key_type if found is None else found
        key_codec_for(found)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: {error.what}", mend=error.mend) from None
    return found, key_of


def _returned(where: str, function: Any) -> Any:
    """What a function is annotated to return, without None; None if it does not say."""
    annotation = getattr(function, "__annotations__", {}).get("return")
    if annotation is None:
        return None
    hint = Scope(getattr(function, "__globals__", {}), {}).resolve_now(
        annotation, f"{where}: its key's function"
    )
    found = [member for member in members_of(hint) if member is not type(None)]
    return found[0] if len(found) == 1 and found[0] is not Any else None


def legal_name(name: Any, what: str, limit: int = 249) -> str:
    """Refuse a name that Kafka does not allow for a topic."""
    if not isinstance(name, str) or not _LEGAL.fullmatch(name) or name in (".", "..") or len(name) > limit:
        raise DefinitionError(
            f"{name!r} cannot be the name of {what}",
            mend=f"Use letters, digits, '.', '_' and '-', at most {limit} of them.",
        )
    return name


def _check_type(type: Any, where: str) -> None:
    for member in members_of(type):
        if not isinstance(get_origin(member) or member, msgspec.StructMeta):
            raise DefinitionError(
                f"{where} is to hold {spell(member)}, which is no event type",
                mend="Declare events as msgspec.Struct classes, several as a union of tagged ones.",
            )
    structs = [get_origin(member) or member for member in members_of(type)]
    if len(structs) > 1 and any(struct.__struct_config__.tag is None for struct in structs):
        raise DefinitionError(
            f"{where} holds {' | '.join(map(spell, structs))}, which cannot be told apart",
            mend="Tag each of them: class A(msgspec.Struct, tag=True).",
        )
    try:
        msgspec.json.Decoder[Any](type)
    except (TypeError, NameError) as error:
        raise DefinitionError(
            f"{where}: {spell(type)} cannot be decoded: {error}",
            mend="Give its fields types that msgspec can decode, and define those in a module.",
        ) from error


def _codec(type: Any, format: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    # Deterministic, as a dict's or set's order must not tell one run from another.
    if format == "msgpack":
        return msgspec.msgpack.Encoder(order="deterministic").encode, msgspec.msgpack.Decoder[Any](
            type
        ).decode
    return msgspec.json.Encoder(order="deterministic").encode, msgspec.json.Decoder[Any](type).decode


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


def _settings(where: str, type: Any, key: Any, options: TopicOptions[Any]) -> TopicSettings:
    event_time = options.get("event_time", RECORD_TIME)
    if not isinstance(event_time, (str, TimeSource)) and not callable(event_time):
        raise DefinitionError(
            f"{where} has event_time={event_time!r}",
            mend="Name a field, give a function of the event, or tr.RECORD_TIME or tr.ARRIVAL_TIME.",
        )
    time_kind: TimeKind = event_time.value if isinstance(event_time, TimeSource) else "field"
    kind, punctuate, generator = _watermark(where, options.get("watermark", True))
    late = options.get("late", "handle")
    late_topic = late if isinstance(late, Topic) else None
    if late_topic is None and late not in ("handle", "drop"):
        raise DefinitionError(
            f"{where} has late={late!r}",
            mend='Write late="handle", late="drop", or another topic of the same type.',
        )
    if late_topic is not None and late_topic.type != type:
        raise DefinitionError(
            f"{where} sends its late events to {late_topic.name!r}, which holds {late_topic.type_name}",
            mend=f"Declare a topic of {spell(type)} for them.",
        )
    repartition = options.get("repartition", False)
    if repartition and key is None:
        raise DefinitionError(f"{where} is to be repartitioned without a key", mend="Add key=.")
    low, high = options.get("time_range", (0, YEAR_2200_MS))
    return TopicSettings(
        format=_one_of(where, "format", options.get("format", "json"), ("json", "msgpack")),
        key=key,
        event_time=event_time,
        time_kind=time_kind,
        out_of_order_ms=_duration(where, "out_of_order", options.get("out_of_order", 0)),
        watermark=kind,
        punctuate=punctuate,
        generator=generator,
        late="route" if late_topic is not None else "drop" if late == "drop" else "handle",
        late_topic=late_topic,
        idle_after_ms=_duration(where, "idle_after", options.get("idle_after", "60s")),
        on_error=_one_of(where, "on_error", options.get("on_error"), (None, "stop", "dead-letter")),
        repartition=repartition,
        time_min_ms=_instant(where, low),
        time_max_ms=_instant(where, high),
    )


def _watermark(where: str, given: Any) -> tuple[WatermarkKind, Any, WatermarkGenerator | None]:
    if isinstance(given, bool):
        return "events" if given else "none", None, None
    if given == "upstream":
        return "upstream", None, None
    if isinstance(given, WatermarkGenerator):
        for field in msgspec.structs.fields(given):
            check_durable(field.type, owner=type(given).__name__, field=field.name)
        return "generator", None, given
    if isinstance(given, type) or not callable(given):
        raise DefinitionError(
            f"{where} has watermark={given!r}",
            mend='Write True, False, "upstream", a function (event, event_time_ms) -> int | None, '
            "or an instance of a tr.WatermarkGenerator.",
        )
    return "punctuated", given, None


def _one_of(where: str, option: str, given: Any, allowed: tuple[Any, ...]) -> Any:
    if given not in allowed:
        raise DefinitionError(
            f"{where} has {option}={given!r}", mend=f"Write one of {', '.join(repr(a) for a in allowed)}."
        )
    return given


def _duration(where: str, option: str, given: Any) -> int:
    try:
        return duration(given)
    except UsageError as error:
        raise DefinitionError(f"{where} has a wrong {option}: {error.what}", mend=error.mend) from None


def _instant(where: str, given: Any) -> int:
    try:
        return to_ms(given)
    except UsageError as error:
        raise DefinitionError(f"{where} has a wrong time_range: {error.what}", mend=error.mend) from None
