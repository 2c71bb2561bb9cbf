"""The lock: a file with the shape of each event type and message of one or several apps, committed with the code.

It is JSON, sorted by name, and made for diffs: what is short is on one line, so a field is a line. Types are described as in the
schema that a service stores with its state (``TypeSchema``). Defaults are in it for people: as text, and not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import DefinitionError, OptionError
from tailrace.core.formats import check_format
from tailrace.core.values.defaults import shown_default
from tailrace.core.values.key_paths import stored_path
from tailrace.core.values.type_schemas import TypeSchema, describe_event, describe_type

FORMAT: Final = 1
LOCK_FILE: Final = "schemas.lock.json"
_WIDTH = 110


class TopicShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topic: its ``format``, and the type of its events; for a pydantic model its JSON Schema in its place.

    ``key`` is the fields of the key by their names in events, "" for a function; None for a topic without one.
    ``event_time`` is the field with the event time by its name in events, "" for a function; ``<record>`` or ``<arrival>``.
    """

    format: str
    key: str | None
    key_type: TypeSchema | None
    event_time: str
    type: TypeSchema | None = None
    model: dict[str, Any] | None = None


class AppShape(msgspec.Struct, frozen=True):
    """The topics of an app, and for each actor that takes messages their types; all by name."""

    topics: dict[str, TopicShape]
    messages: dict[str, dict[str, TypeSchema]]


class Locked(NamedTuple):
    """An app of a lock: its shape, and what the file has, defaults included."""

    shape: AppShape
    plain: Any


def shape_of(plan: Plan) -> AppShape:
    """The shape of an app's topics and messages. Raises DefinitionError for a type that cannot be described."""
    messages = {
        actor.name: {
            name: _described(one.type, f"the message {name!r} of {actor.name}")
            for name, one in sorted(actor.messages.items())
        }
        for actor in plan.actors
        if actor.messages
    }
    return AppShape({name: _topic(plan.topics[name]) for name in sorted(plan.topics)}, messages)


def _topic(topic: Topic[Any, Any]) -> TopicShape:
    key = topic.settings.key
    path = None if key is None else "" if callable(key) else stored_path(topic.type, key)
    key_type = None if key is None else describe_type(topic.key_codec.type)
    time, kind = topic.settings.event_time, topic.settings.time_kind
    event_time = (
        f"<{kind}>" if kind != "field" else stored_path(topic.type, time) if isinstance(time, str) else ""
    )
    model: Any = getattr(topic.type, "model_json_schema", None)
    if model is not None:
        return TopicShape(topic.settings.format, path, key_type, event_time, model=model())
    described = _described(topic.type, f"the topic {topic.name!r}")
    return TopicShape(topic.settings.format, path, key_type, event_time, described)


def _described(declared: Any, where: str) -> TypeSchema:
    try:
        return describe_event(declared)
    except TypeError as error:
        raise DefinitionError(
            f"{where} cannot be described: {error}",
            hint="Declare its fields with types that msgspec decodes without a hook.",
        ) from None


def plain_of(shape: AppShape) -> Any:
    """The shape as it is in the file."""
    return _changed(msgspec.to_builtins(shape), _shown)


def without_defaults(shape: AppShape) -> AppShape:
    """The shape as it is compared."""
    return msgspec.convert(_changed(msgspec.to_builtins(shape), _without_default), AppShape)


def write_lock(path: Path, apps: dict[str, Any]) -> None:
    """Write the apps, given as they are in the file. Raises OptionError if it cannot be written."""
    written = {"format": FORMAT, "apps": dict(sorted(apps.items()))}
    try:
        path.write_text("\n".join(_lines(written)) + "\n", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"the lock {path} cannot be written: {error.strerror}") from None


def read_lock(path: Path) -> dict[str, Locked]:
    """The apps of a lock, by name.

    Raises OptionError if there is no such file, or it is no lock; FormatError if another version wrote it.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        check_format(f"the lock {path}", plain["format"], FORMAT)
        return {
            name: Locked(msgspec.convert(_changed(one, _without_default), AppShape), one)
            for name, one in plain["apps"].items()
        }
    except FileNotFoundError:
        raise OptionError(
            f"there is no lock {path}", hint="Write it with 'tailrace schemas lock', and commit it."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{path} is no lock of schemas: {error}",
            hint="Take it from your version control, or write it again with 'tailrace schemas lock'.",
        ) from None


def _shown(field: dict[str, Any]) -> dict[str, Any]:
    """The field with its default as text: in a description, it is msgpack in base64."""
    if "default" not in field:
        return field
    encoded = msgspec.convert(field["default"], bytes)
    return {**field, "default": shown_default(encoded) if encoded else "not certain"}


def _without_default(field: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in field.items() if name != "default"}


def _changed(plain: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A description in which each field is changed."""
    if isinstance(plain, (list, tuple)):
        return [_changed(one, change) for one in cast("list[Any]", plain)]
    if not isinstance(plain, dict):
        return plain
    found = {name: _changed(one, change) for name, one in cast("dict[str, Any]", plain).items()}
    is_field = isinstance(found.get("type"), dict) and "kind" in found["type"]
    return change(found) if is_field else found


def _lines(plain: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    """JSON in lines: what is short is one line."""
    short, indent = name + json.dumps(plain, ensure_ascii=False), "  " * depth
    if not isinstance(plain, (dict, list)) or not plain or (depth and len(indent + short) <= _WIDTH):
        yield indent + short
        return
    begin, end = "{}" if isinstance(plain, dict) else "[]"
    inner = [("", one) for one in cast("list[Any]", plain)]
    if isinstance(plain, dict):
        inner = [(f"{json.dumps(key)}: ", one) for key, one in cast("dict[str, Any]", plain).items()]
    yield indent + name + begin
    for at, (key, one) in enumerate(inner, 1):
        *lines, last = _lines(one, key, depth + 1)
        yield from lines
        yield last + ("," if at < len(inner) else "")
    yield indent + end
