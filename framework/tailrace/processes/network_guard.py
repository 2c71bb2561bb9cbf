"""Network calls by handlers: refused in tests and replays, warned of in a service.

The answer of another system is not in the log, so a replay or a rebuild would ask for it again and could get another one. Python
reports each connection and each name that it looks up as an audit event (PEP 578). Whether a handler is the cause is read from
the stack: the innermost frame of Tailrace belongs to the engine or to an operator, and not to a log, a store or a registry. So
nothing is done per event. Not seen are threads that a handler starts, and extensions with sockets of their own, such as librdkafka.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from tailrace.core.errors import UsageError

_log = logging.getLogger("tailrace.service")

_EVENTS: Final = frozenset(
    f"socket.{name}" for name in ("connect", "getaddrinfo", "gethostbyname", "sendto", "sendmsg")
)
_OF_A_SOCKET: Final = ("socket.connect", "socket.sendto", "socket.sendmsg")
"""The first argument of these is the socket, and the second the address."""
_HANDLERS: Final = ("tailrace.core.", "tailrace.library.")
_HINT: Final = (
    "Let a program outside of the app make the call and write the answer to a topic that the app reads; a replay then reads the same "
    "answer."
)


class _Here(threading.local):
    refused = 0


_here = _Here()
_watched = False
_warned = False


def watch_network() -> None:
    """From now on, log a warning for the first network call that a handler makes in this process."""
    global _watched  # noqa: PLW0603  # an audit hook is of the process, and stays
    if not _watched:
        _watched = True
        sys.addaudithook(_heard)


@contextmanager
def network_refused() -> Generator[None]:
    """In the block, a network call by a handler on this thread raises UsageError inside of the handler."""
    watch_network()
    _here.refused += 1
    try:
        yield
    finally:
        _here.refused -= 1


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    global _warned  # noqa: PLW0603  # as above
    if event not in _EVENTS or (_warned and not _here.refused):
        return
    handler = _calling_handler()
    if handler is None:
        return
    what = f"{handler} calls the network: {event} {arguments[event in _OF_A_SOCKET]!r}"
    if _here.refused:
        raise UsageError(what, hint=_HINT)
    _warned = True
    _log.warning("%s. A replay or a rebuild would ask again. %s", what, _HINT)


def _calling_handler() -> str | None:
    """The outermost frame of the handler that is running on this thread; None if no handler is."""
    frame: FrameType | None = sys._getframe(2)
    handler = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] == "logging":
            return None  # a log may be sent
        if module.startswith("tailrace."):
            return handler if module.startswith(_HANDLERS) else None
        code = frame.f_code
        handler = f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return None
