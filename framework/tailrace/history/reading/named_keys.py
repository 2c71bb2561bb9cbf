"""Keys as a person writes them: ``N14228``, ``17``, ``2013-01-01``, ``["JFK",3]``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TailraceError
from tailrace.core.values.keys import KeyCodec
from tailrace.core.values.partitioner import partition_of


@dataclass(frozen=True, slots=True)
class NamedKeys:
    """All keys of an app that some texts can mean, and the partitions of these keys."""

    keys: frozenset[Any]
    partitions: frozenset[int]


def named_keys(plan: Plan, texts: tuple[str, ...]) -> NamedKeys:
    """Every key that one of the texts can mean, for any actor or input of the app. Raises ValueError."""
    codecs = [
        *(one.key_codec for one in plan.actors),
        *(one.key_codec for one in plan.inputs if not one.is_inbox),
    ]
    keys: set[Any] = set()
    partitions: set[int] = set()
    for text in texts:
        found = [(codec, key) for codec in codecs for key in meanings(codec, text)]
        if not found:
            raise ValueError(f"{text!r} is no key of the app {plan.app!r}")
        for codec, key in found:
            keys.add(key)
            partitions.add(partition_of(codec.encode(key), plan.partitions))
    return NamedKeys(frozenset(keys), frozenset(partitions))


def meanings(codec: KeyCodec, text: str) -> Iterator[Any]:
    """The key of this codec that a text means; nothing if it means none."""
    for data in _forms(codec, text):
        try:
            yield codec.decode(data)
        except (TailraceError, ValueError):
            continue
        return


def _forms(codec: KeyCodec, text: str) -> Iterator[bytes]:
    """The possible encodings of a text: the 8 letters of a text are not the 8 bytes of an int."""
    if codec.type is not int:
        yield text.encode()
    try:
        read = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return
    if type(read) is int and -(1 << 63) <= read < 1 << 63:
        yield read.to_bytes(8, "big", signed=True)
    elif isinstance(read, list):
        yield msgspec.json.encode(read)
