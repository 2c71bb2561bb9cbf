"""How deep JSON and MessagePack are nested, before they are decoded.

msgspec decodes and encodes as deep as the stack allows. So an event near that limit could be decoded and not be stored, or be decoded in the
first run and not in a replay. A limit that is far below, and exact, makes it undecodable everywhere.

The depth of JSON is that of its brackets. MessagePack has to be decoded for it, so it is looked at only where the type allows any depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from tailrace.core.values.types import parts_of

DEEPEST: Final = 200
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(range(256)).translate(None, b"[]{}")
_HEADERS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""What an array or a map begins with in MessagePack."""
_MAPS: Final = frozenset((dict,))
_CONTAINERS: Final = _MAPS | {list, tuple}
_NO_HEADERS: Final = bytes(range(256)).translate(None, _HEADERS)


def depth_test(format: str, declared: Any) -> Callable[[bytes], bool] | None:
    """Whether a value of a topic is nested too deep, by its bytes; None if no value of its type can be."""
    if format.startswith("json"):
        return is_too_deep
    return is_packed_too_deep if format == "msgpack" and may_be_deep(declared) else None


def may_be_deep(declared: Any) -> bool:
    """Whether values of a type may have any depth: it has a part without a type, or one that has itself as a part."""
    for part in parts_of(inspect.type_info(declared), set()):
        fields: Any = getattr(part, "fields", ())
        inner = [one for field in fields for one in parts_of(field.type, set())]
        is_recursive = any(getattr(one, "cls", inner) is getattr(part, "cls", None) for one in inner)
        if is_recursive or isinstance(part, inspect.AnyType | inspect.RawType | inspect.CustomType):
            return True
    return False


def is_too_deep(data: bytes) -> bool:
    """Whether values are nested deeper than ``DEEPEST``. For bytes that are no JSON, it may be either."""
    if len(data) <= DEEPEST or data.count(b"[") + data.count(b"{") <= DEEPEST:
        return False
    outside = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    left = outside.translate(_ALIKE, _NO_BRACKETS)
    for _ in range(DEEPEST):  # each time, the innermost level goes
        left = left.replace(b"[]", b"")
    return bool(left)


def is_packed_too_deep(data: bytes) -> bool:
    """The same for MessagePack."""
    if len(data) <= DEEPEST or len(data.translate(None, _NO_HEADERS)) <= DEEPEST:
        return False
    try:
        level: list[Any] = [msgspec.msgpack.decode(data)]
    except RecursionError:
        return True
    except msgspec.MsgspecError as error:
        return "hashable" in str(error)  # a map is a key of a map; anything else the decoder will refuse
    for _ in range(DEEPEST):
        inside = (one for some in level for one in (*some, *(some.values() if type(some) in _MAPS else ())))
        level = [one for one in inside if type(one) in _CONTAINERS]
        if not level:
            return False
    return True
