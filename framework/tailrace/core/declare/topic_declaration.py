"""Makes a topic from the arguments of ``App.topic``. Everything is checked here, and refused with a hint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast, get_origin

import msgspec

from tailrace.core.declare.annotations import Scope, annotations_of, members_of
from tailrace.core.declare.event_codec import RecordFormat
from tailrace.core.declare.event_marks import keyed_type, marked_event_time, marked_key
from tailrace.core.declare.event_time import RECORD_TIME, YEAR_2200_MS, TimeSource
from tailrace.core.declare.topic import (
    ON_ERROR,
    Table,
    TimeKind,
    Topic,
    TopicDeclaration,
    TopicOptions,
    WatermarkKind,
)
from tailrace.core.durations import declared_duration, to_ms
from tailrace.core.errors import DefinitionError, UsageError
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import kind_of
from tailrace.core.values.key_paths import Path, key_getter, key_type_of
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.misread import INSTEAD, misread
from tailrace.core.values.types import spell

IDLE_AFTER: Final = "60s"
"""The default of ``idle_after``."""
AHEAD_OF_CLOCK: Final = "1d"
"""The default of ``ahead_of_clock``."""
FROM_TYPE: Final = object()
"""The default of ``key``: the fields that the event type marks as the key, if any."""
_WATERMARKS: Final[Mapping[Any, WatermarkKind]] = {True: "events", False: "none", "upstream": "upstream"}
_PATH: Final[tuple[type[Any], ...]] = (str, tuple)
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")


def declare_topic(
    app: str,
    partitions: int,
    name: str,
    type: Any,
    key: Any,
    key_type: Any,
    options: TopicOptions[Any],
    kind: Callable[..., Topic[Any, Any]] = Topic,
) -> Topic[Any, Any]:
    """Make a topic, or a table as its ``kind``, or raise DefinitionError or DurableTypeError with a hint."""
    where = f"the {'table' if kind is Table else 'topic'} {name!r}"
    legal_name(name, "a topic")
    _check_type(type, where)
    if key is FROM_TYPE:
        key = marked_key(type, where)
        _check_keyed(where, type, key)
    if "event_time" not in options and (event_time := marked_event_time(type, where)) is not None:
        options = {**options, "event_time": event_time}
    key_type, key_of = (bytes | None, None) if key is None else value_reader(where, type, key, key_type)
    settings = _settings(where, type, key, options)
    return kind(app, name, type, partitions=partitions, key_type=key_type, key_of=key_of, settings=settings)


def _check_keyed(where: str, type: Any, key: Path | None) -> None:
    """Check that the marked fields of each class make the key that ``tr.Keyed`` gives to type checkers."""
    for member in members_of(type):
        key_type = keyed_type(member)
        if key_type is None:
            continue
        if key is None:
            raise DefinitionError(
                f"{where}: {spell(member)} is tr.Keyed, but no field of it is marked as the key",
                hint=f"Mark it: field: tr.Key[{spell(key_type)}], or give the topic key=.",
            )
        found = key_type_of(member, key)
        if found != key_type:
            raise DefinitionError(
                f"{where}: {spell(member)} is tr.Keyed[{spell(key_type)}], but its key {key!r} is "
                f"{spell(found)}",
                hint=f"Write tr.Keyed[{spell(found)}].",
            )


def value_reader(
    where: str,
    type: Any,
    key: Any,
    key_type: Any,
    *,
    option: str = "key",
    codec_for: Callable[[Any], Any] = key_codec_for,
) -> tuple[Any, Callable[[Any], Any]]:
    """The type of a value of an event that is declared like a key, by this option, and the function that gets it.

    ``codec_for`` refuses a type that cannot be its type.
    """
    try:
        if isinstance(key, _PATH):
            path = cast("Path", key)
            found, key_of = key_type_of(type, path), key_getter(path)
        elif callable(key):
            found, key_of = _returned(where, key), key
        else:
            raise DefinitionError(
                f"{option}={key!r} is not a field",
                hint="Give the name of a field, a tuple of names, or a function of the event.",
            )
        if found is None and key_type is None:
            raise DefinitionError(
                f"its {option} is a function without an annotated return type",
                hint=f"Annotate the return type, or add {option}_type=, such as {option}_type=str.",
            )
        if key_type is not None and found is not None and found != key_type:
            raise DefinitionError(
                f"{option}_type is {spell(key_type)}, but {option}={key!r} is {spell(found)}",
                hint=f"Write {option}_type={spell(found)}, or leave it out.",
            )
        found = key_type if found is None else found
        codec_for(found)
    except DefinitionError as error:
        what = error.what if option == "key" else re.sub("^the key ", f"{option}=", error.what)
        raise DefinitionError(f"{where}: {what}", hint=error.hint) from None
    return found, key_of


def _returned(where: str, function: Any) -> Any:
    """The annotated return type of a function, without None; None if there is none."""
    annotation = annotations_of(function).get("return")
    if annotation is None:
        return None
    hint = Scope(getattr(function, "__globals__", {}), {}).resolve_now(
        annotation, f"{where}: its key's function"
    )
    found = [member for member in members_of(hint) if member is not type(None)]
    return found[0] if len(found) == 1 and found[0] is not Any else None


def legal_name(name: Any, what: str, limit: int = 249) -> str:
    """Refuse a name that Kafka does not allow for topics."""
    if not isinstance(name, str) or not _LEGAL.fullmatch(name) or name in (".", "..") or len(name) > limit:
        raise DefinitionError(
            f"{name!r} cannot be the name of {what}",
            hint=f"Use letters, digits, '.', '_' and '-', at most {limit} of them.",
        )
    return name


def _check_type(type: Any, where: str) -> None:
    members = members_of(type)
    kinds = [kind_of(member) for member in members]
    for member, kind in zip(members, kinds, strict=True):
        if kind is None:
            raise DefinitionError(
                f"{where} is to hold {spell(member)}, which is not an event type",
                hint="Declare events as msgspec.Struct classes, dataclasses or pydantic models, several as a "
                "union of tagged structs.",
            )
        if kind == "dataclass" and hasattr(get_origin(member) or member, "__pydantic_validator__"):
            raise DefinitionError(
                f"{where} is to hold {spell(member)}, a pydantic dataclass, whose validators would not run",
                hint="Make it a pydantic.BaseModel, or a dataclass of the standard library.",
            )
    if len(members) > 1 and any(
        kind != "struct" or (get_origin(member) or member).__struct_config__.tag is None
        for member, kind in zip(members, kinds, strict=True)
    ):
        raise DefinitionError(
            f"{where} holds {' | '.join(map(spell, members))}, which cannot be distinguished",
            hint="Make each a struct with a tag: class A(msgspec.Struct, tag=True).",
        )
    if kinds == ["model"]:
        try:
            type.model_rebuild()
        except NameError as error:
            raise DefinitionError(
                f"{where}: an annotation of {spell(type)} cannot be looked up: "
                f"{' '.join(str(error).split())}",
                hint="Define what it names at the top of the module.",
            ) from None
        return
    if why := misread(type, []):
        raise DefinitionError(f"{where} is to hold {spell(type)}: {why}", hint=INSTEAD)
    try:
        msgspec.json.Decoder[Any](type)
    except (TypeError, NameError) as error:
        hint = "Give its fields types that msgspec can decode, and define those in a module."
        if "InitVar" in str(error):
            hint = (
                "A record does not hold an InitVar: make it a field, or compute what follows from it before."
            )
        raise DefinitionError(f"{where}: {spell(type)} cannot be decoded: {error}", hint=hint) from error


def _settings(where: str, type: Any, key: Any, options: TopicOptions[Any]) -> TopicDeclaration:
    event_time = options.get("event_time", RECORD_TIME)
    if not isinstance(event_time, (str, TimeSource)) and not callable(event_time):
        raise DefinitionError(
            f"{where} has event_time={event_time!r}",
            hint="Name a field, give a function of the event, or tr.RECORD_TIME or tr.ARRIVAL_TIME.",
        )
    time_kind: TimeKind = event_time.value if isinstance(event_time, TimeSource) else "field"
    late = options.get("late", "handle")
    late_topic = late if isinstance(late, Topic) else None
    if late_topic is None:
        one_of(where, "late", late, ("handle", "drop"), ", or give another topic of the same type")
    elif late_topic.type != type:
        raise DefinitionError(
            f"{where} sends its late events to {late_topic.name!r}, which holds {late_topic.type_name}",
            hint=f"Declare a topic of {spell(type)} for them.",
        )
    broadcast = options.get("broadcast", False)
    repartition = broadcast or options.get("repartition", False)
    if repartition and key is None:
        how = "broadcast" if broadcast else "repartition"
        raise DefinitionError(f"{where} has {how}=True but no key", hint="Add key=.")
    for name in ("repartition", "watermark", "idle_after", "late", "out_of_order"):
        if broadcast and name in options:
            raise DefinitionError(
                f"{where} has broadcast=True and {name}=",
                hint="Leave that out: a broadcast topic is read by every task, and never late.",
            )
    form = options.get("format", "json")
    own = form if isinstance(form, RecordFormat) else None
    ahead = options.get("ahead_of_clock", None if broadcast else AHEAD_OF_CLOCK)
    time_min_ms, time_max_ms = _time_range(where, options.get("time_range", (0, YEAR_2200_MS)))
    return TopicDeclaration(
        format=one_of(where, "format", form, ("json", "msgpack")) if own is None else own.name,
        record_format=own,
        key=key,
        event_time=event_time,
        time_kind=time_kind,
        out_of_order_ms=declared_duration(where, "out_of_order", options.get("out_of_order", 0)),
        watermark=_WATERMARKS[one_of(where, "watermark", options.get("watermark", True), tuple(_WATERMARKS))],
        follows="watermark" not in options and not broadcast,
        late="route" if late_topic is not None else "drop" if late == "drop" else "handle",
        late_is_declared="late" in options,
        late_topic=late_topic,
        idle_after_ms=declared_duration(
            where, "idle_after", options.get("idle_after", 0 if broadcast else IDLE_AFTER)
        ),
        ahead_of_clock_ms=None if ahead is None else declared_duration(where, "ahead_of_clock", ahead),
        on_error=one_of(where, "on_error", options.get("on_error"), (None, *ON_ERROR)),
        repartition=repartition,
        broadcast=broadcast,
        time_min_ms=time_min_ms,
        time_max_ms=time_max_ms,
        refuse_seconds=time_kind == "field" and "time_range" not in options,
    )


def one_of(where: str, option: str, value: Any, allowed: tuple[Any, ...], more: str = "") -> Any:
    """Refuse the value of an option that is not one of the allowed ones."""
    if value not in allowed:
        names = [one for one in allowed if isinstance(one, str)]
        hint = f"Write one of {', '.join(map(repr, allowed))}{more}."
        raise DefinitionError(f"{where} has {option}={value!r}", hint=did_you_mean(value, names, hint))
    return value


def _time_range(where: str, value: Any) -> tuple[int, int]:
    try:
        first, last = value
    except (TypeError, ValueError):
        raise DefinitionError(
            f"{where} has time_range={value!r}",
            hint="Give the first and the last instant: (0, 7_258_118_400_000).",
        ) from None
    try:
        first_ms, last_ms = to_ms(first), to_ms(last)
    except UsageError as error:
        raise DefinitionError(f"{where} has a wrong time_range: {error.what}", hint=error.hint) from None
    if first_ms > last_ms:
        raise DefinitionError(
            f"{where} has a time_range from {first_ms} to {last_ms} ms, which is empty",
            hint="Give the first instant, then the last.",
        )
    return first_ms, last_ms
