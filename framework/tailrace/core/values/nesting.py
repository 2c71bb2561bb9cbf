"""How deep JSON is nested: by its bytes alone, before they are decoded.

msgspec decodes and encodes as deep as the stack allows. So an event near that limit could be decoded and not be stored, or be decoded in the
first run and not in a replay. A limit that is far below, and exact, makes it undecodable everywhere.
"""

from __future__ import annotations

from typing import Final

DEEPEST: Final = 200
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(range(256)).translate(None, b"[]{}")


def is_too_deep(data: bytes) -> bool:
    """Whether values are nested deeper than ``DEEPEST``. For bytes that are no JSON, it may be either."""
    if len(data) <= DEEPEST or data.count(b"[") + data.count(b"{") <= DEEPEST:
        return False
    outside = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    left = outside.translate(_ALIKE, _NO_BRACKETS)
    for _ in range(DEEPEST):  # each time, the innermost level goes
        left = left.replace(b"[]", b"")
    return bool(left)
