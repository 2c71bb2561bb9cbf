"""The error of a question that has no answer."""

from __future__ import annotations

from typing import Any, Final

from tailrace.core.errors import QueryError

BAD_REQUEST: Final = 400
NOT_FOUND: Final = 404
ELSEWHERE: Final = 421
"""The partition of the key is another process's."""
FAILED: Final = 500
NOT_YET: Final = 503
"""The state of the partition is not known here at present."""
_SHOWN: Final = 80
"""Characters of a key in a message."""


class Unanswered(QueryError):
    """A question has no answer. ``status`` is that of HTTP."""

    def __init__(self, what: str, *, status: int, hint: str = "", **place: Any) -> None:
        key = place.get("key")
        if isinstance(key, (str, bytes)) and len(key) > _SHOWN:
            place["key"] = f"{key[:_SHOWN]!r}…"
        super().__init__(what, hint=hint, **place)
        self.status = status
