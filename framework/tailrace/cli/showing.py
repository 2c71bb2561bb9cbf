"""Formats records for output: as JSON (without loss), or as a line of text.

In JSON output, keys are text, and values are JSON or text. Data that is not UTF-8 is written in base64 under
another name. A deletion has no value at all, which differs from the JSON value ``null``::

    {"partition":0,"offset":5,"timestamp_ms":1357017420000,"key":"k","value":{...},"headers":[["a","b"]]}
    value_text    the value is UTF-8, and no JSON          key_base64, value_base64    it is not UTF-8

A float that JSON cannot represent is written as text: "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.core.declare.topic import Topic
from tailrace.core.durations import spelled, to_datetime
from tailrace.core.engine.describe_rows import Change
from tailrace.core.errors import TailraceError
from tailrace.core.records import InputRecord
from tailrace.core.values.json_values import as_json_value
from tailrace.processes import logs

AnyTopic = Topic[Any, Any]
printable = logs.printable

_IN_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_encode = msgspec.json.Encoder(enc_hook=str).encode
_CONTROLS = re.compile(rb"\xc2[\x80-\x9f]|\x7f")
_raw = msgspec.json.Decoder(msgspec.Raw).decode


def as_json(partition: int, record: InputRecord, topic: AnyTopic | None = None) -> bytes:
    """The record in one line. With ``topic``, its key and value are decoded as the app does, if possible."""
    return json_line(as_dict(partition, record, topic))


def as_dict(partition: int, record: InputRecord, topic: AnyTopic | None = None) -> dict[str, Any]:
    """The object that ``as_json`` encodes."""
    shown: dict[str, Any] = {
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_key(record.key, topic),
        **_value(record.value, topic),
    }
    if record.headers:
        shown["headers"] = [[name, _text_or_base64(value)] for name, value in record.headers]
    return shown


def as_text(partition: int, record: InputRecord, topic: AnyTopic | None = None) -> bytes:
    """The record in a line for people: time, place, key, value."""
    shown = as_dict(partition, record, topic)
    key = cell(shown, "key") or "-"
    value = "(deleted)" if record.value is None else cell(shown, "value") or "null"
    place = f"{partition}/{record.offset}"
    return f"{instant(record.timestamp_ms)}  {place:<10} {printable(key)}  {printable(value)}".encode()


def cell(shown: dict[str, Any], name: str) -> str:
    """A part of a record from ``as_dict`` for people; empty if there is none."""
    for found in (name, f"{name}_text", f"{name}_base64"):
        if (value := shown.get(found)) is not None:
            text = value if isinstance(value, str) and found != "value" else _encode(value).decode()
            return f"base64:{text}" if found.endswith("_base64") else text
    return ""


def kept(compacted: bool, retention_ms: int | None, retention_bytes: int | None) -> str:
    """How long the records of a topic are kept, for people."""
    limits = [
        "the last of each key" if compacted else "",
        spelled(retention_ms) if retention_ms is not None else "",
        f"{retention_bytes:,} bytes" if retention_bytes is not None else "",
    ]
    return ", ".join(filter(None, limits)) or "all"


def instant(timestamp_ms: int | None) -> str:
    """An instant for people, in UTC; in milliseconds outside the calendar; ``-`` if there is none."""
    if timestamp_ms is None:
        return "-"
    try:
        return to_datetime(timestamp_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except TailraceError:
        return f"{timestamp_ms}ms"


def changes_as_dicts(changes: Sequence[Change], was: str = "one", now: str = "other") -> list[dict[str, str]]:
    """Changes for JSON, under the names that a command gives to the two sides."""
    return [{"label": one.label, was: one.was, now: one.is_} for one in changes]


def json_line(value: object) -> bytes:
    """JSON that also escapes the control characters beyond ASCII, which a terminal would execute."""
    return _CONTROLS.sub(lambda found: b"\\u%04x" % found[0][-1], _encode(value))


def _key(key: bytes | None, topic: AnyTopic | None) -> dict[str, Any]:
    if key is None:
        return {"key": None}
    if topic is not None and topic.key_of is not None:
        try:
            return {"key": msgspec.to_builtins(topic.key_codec.decode(key))}
        except TailraceError:
            pass  # shown as it is
    return _named("key", key)


def _value(value: bytes | None, topic: AnyTopic | None) -> dict[str, Any]:
    if value is None:
        return {}
    if topic is not None:
        try:
            return {"value": as_json_value(topic.decode(value))}
        except (msgspec.MsgspecError, TypeError):  # TypeError: it has keys that JSON cannot represent
            pass  # shown as it is
    try:
        value.decode()
        shown = _raw(value)
        if b"\n" in value or b"\r" in value:  # a line is a record
            msgspec.json.decode(value)
            # In valid JSON, raw line ends are only between tokens, never inside strings.
            shown = _raw(value.translate(_IN_ONE_LINE))
        return {"value": shown}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        named = _named("value", value)
        return {"value_text": named["value"]} if "value" in named else named


def _named(name: str, data: bytes) -> dict[str, Any]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _text_or_base64(data: bytes) -> Any:
    named = _named("text", data)
    return named["text"] if "text" in named else {"base64": named["text_base64"]}
