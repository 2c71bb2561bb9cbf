"""Keys as they are written in a URL: percent-encoded.

=====================  =============================================================
a key of type          is written as
=====================  =============================================================
str                    its text
bytes                  its bytes, each that is no letter or digit as ``%XX``
int                    its decimal digits
UUID, date             its text in ISO form
enum, Literal          its value
a tuple of these       a JSON array: ``["JFK",3]``
=====================  =============================================================
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

from tailrace.core.declare.plan import ActorPlan
from tailrace.core.declare.topic import Topic
from tailrace.core.values.types import spell
from tailrace.history.reading.named_keys import meanings
from tailrace.serve.unanswered import BAD_REQUEST, Unanswered

_SHOWN = 80


def key_in_url(of: ActorPlan | Topic[Any, Any], written: str | bytes) -> Any:
    """The key of an actor or table that a part of a URL means. Raises Unanswered (400)."""
    codec, data = of.key_codec, unquote_to_bytes(written)
    if codec.type is bytes:
        return data
    try:
        for key in meanings(codec, data.decode()):
            return key
    except UnicodeDecodeError:
        pass
    shown = repr(data[:_SHOWN]) + ("…" if len(data) > _SHOWN else "")
    raise Unanswered(
        f"{shown} is no key of type {spell(codec.type)}",
        status=BAD_REQUEST,
        **{"topic" if isinstance(of, Topic) else "actor": of.name},
        hint="Write an int in decimal digits, a UUID or date in ISO form, a tuple as a JSON array, and percent-encode the result.",
    )
