"""An HTTP server in a thread of its own: uvicorn, with limits for clients that are slow, silent or many.

A process must not suffer from who asks it. So:

    a request                                 has to come, be answered and be taken within ``REQUEST_S``, or its connection is closed; see ``ALLOW``
    a connection that has sent no request     is closed after that time too
    between two requests                      ``KEEP_ALIVE_S``
    connections that wait for a request,      ``MOST_WAITING``, counted from accept on; a new one takes the place of the
    or have not finished TLS's handshake      oldest, so that silent connections keep nobody out
    headers of a request                      ``MOST_HEADER_BYTES``; a body is read by the app alone
    requests on one connection that came      ``MOST_PIPELINED``; a connection with more is closed
    before the answer to an earlier one
    warnings about requests                   one of a kind in ``_SELDOM_S``

The app runs in the server's thread, one request at a time where it does not wait.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import socket
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tailrace.core.errors import OptionError, UsageError
from tailrace.http.listening import BACKLOG, Listen

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = b"application/json"
REQUEST_S = 15.0
ALLOW = "tailrace.allow"
"""The extension of a request by which the app gives it another time, in seconds from now: a replay takes long."""
KEEP_ALIVE_S = 30
MOST_WAITING = 200
MOST_HEADER_BYTES = 64 << 10
MOST_PIPELINED = 20
_HOST = re.compile(r"(?:\[([^]]*)\]|([^:@\[\]]+))(?::\d*)?")
_SELDOM_S = 10.0
_SIGNAL_S = 0.25
"""The longest time that ``join`` sleeps. Python runs a signal's handler in the main thread, and a signal does not wake that thread if
another one received it, or if it came just before the sleep.
"""
_LEAVE_S = 5
"""How long requests may take that are under way when the server is closed."""


class Server:
    """Answers requests by an ASGI app, from ``start`` to ``close``.

    ``open_paths`` need no token: what a probe asks, which has none.
    """

    def __init__(self, app: App, listen: Listen, open_paths: Collection[str] = ()) -> None:
        self._listen = listen
        self._context: ssl.SSLContext | None = None
        waiting = _Waiting()

        def protocol(*given: Any, **named: Any) -> _Connection | _Handshake:
            connection = partial(_Connection, waiting, *given, **named)
            return connection() if self._context is None else _Handshake(waiting, self._context, connection)

        self._config = uvicorn.Config(
            _Guarded(app, listen, frozenset(open_paths)),
            http=cast("type[asyncio.Protocol]", protocol),  # it is called like the class
            ws="none",
            loop="asyncio",
            backlog=BACKLOG,
            lifespan="auto",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=_LEAVE_S,
            ssl_certfile=listen.certificate,
            ssl_keyfile=listen.key,
            ssl_ca_certs=None if listen.client_ca is None else str(listen.client_ca),
            ssl_cert_reqs=ssl.CERT_NONE if listen.client_ca is None else ssl.CERT_REQUIRED,
        )
        self._server = uvicorn.Server(self._config)
        logging.getLogger("uvicorn.error").addFilter(_seldom)
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        """Listen, and answer in a thread from now on. Returns the port.

        Raises OptionError: the address is taken, or a file of TLS is none of its kind.
        """
        try:
            self._config.load()
            self._context, self._config.ssl = self._config.ssl, None  # TLS begins in ``_Handshake``
        except (ssl.SSLError, OSError) as error:
            raise OptionError(
                f"the certificates for HTTPS cannot be used: {error}",
                hint="--http-certificate, --http-key and --http-client-ca name PEM files; the key belongs to the certificate.",
            ) from None
        listening = self._listen.bind()
        port: int = listening.getsockname()[1]
        self._thread = threading.Thread(
            target=self._run, args=(listening,), name="tailrace-http", daemon=True
        )
        self._thread.start()
        return port

    def _run(self, listening: socket.socket) -> None:
        with listening:
            self._server.run([listening])

    def stop(self) -> None:
        """Begin to close. May be called from a signal handler."""
        self._server.should_exit = True

    def join(self) -> None:
        """Wait until it has closed. Raises UsageError: the app did not begin."""
        assert self._thread is not None
        while self._thread.is_alive():
            self._thread.join(_SIGNAL_S)
        if not self._server.started:
            raise UsageError("the answers over HTTP could not begin: see the log")

    def close(self) -> None:
        """Stop listening. Returns when the requests under way have been answered, or after 5 s."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_LEAVE_S + 1)


async def respond(
    scope: Scope, send: Send, status: int, body: bytes, kind: bytes = JSON, more: Sequence[Header] = ()
) -> None:
    """Send an answer, without its body where only its head was asked for."""
    length = (b"content-length", b"%d" % len(body))
    headers = [(b"content-type", kind), length, (b"cache-control", b"no-store"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class _Guarded:
    """Turns requests away that do not carry the token: as a bearer, or as the password of any name, which a browser asks for.

    On the loopback interface without a token, it turns those away that name another host than this machine: a page in a browser
    could otherwise ask under a name of its own that it lets point here (DNS rebinding). Nor may a page of another site ask.
    """

    def __init__(self, app: App, listen: Listen, open_paths: Collection[str]) -> None:
        self._app = app
        self._token = listen.token.encode()
        self._local = listen.is_loopback and not listen.token
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self._app(scope, receive, send)
        elif self._token and not self._is_known(_values(scope, b"authorization")):
            await _refuse(
                send, 401, "the request has no token, or another one: send Authorization: Bearer TOKEN"
            )
        elif self._local and [_is_here(one) for one in _values(scope, b"host")] != [True]:
            await _refuse(
                send, 421, "without a token, only requests to localhost or a loopback address are answered"
            )
        elif self._local and b"cross-site" in _values(scope, b"sec-fetch-site"):
            await _refuse(
                send, 403, "without a token, no request is answered that a page of another site makes"
            )
        else:
            await self._app(scope, receive, send)

    def _is_known(self, given: Sequence[bytes]) -> bool:
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        token = token.strip()
        if scheme.lower() == b"basic":
            with suppress(ValueError):
                token = b64decode(token, validate=True).partition(b":")[2]
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(token, self._token)


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]


def _is_here(host: bytes) -> bool:
    named = _HOST.fullmatch(host.decode("latin-1").strip().lower())
    try:
        return named is not None and (
            named[2] == "localhost" or ip_address(named[1] or named[2] or "").is_loopback
        )
    except ValueError:
        return False


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", JSON), (b"connection", b"close")]
    if status == 401:
        headers += [(b"www-authenticate", b"Bearer"), (b"www-authenticate", b'Basic realm="tailrace"')]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})


class _Seldom(logging.Filter):
    """Strangers cannot fill the log: of each kind of message, it passes one in ``_SELDOM_S``."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See ``logging.Filter``. The kind is the message without its arguments."""
        now_s = time.monotonic()
        if now_s - self._passed_s.get(str(record.msg), -_SELDOM_S) < _SELDOM_S:
            return False
        self._passed_s[str(record.msg)] = now_s
        return True


_seldom = _Seldom()


class _Waiting(dict["_Connection | _Handshake", None]):
    """The connections that wait, the oldest first."""

    def begin(self, one: _Connection | _Handshake) -> None:
        """Add a new connection; the oldest makes room for it."""
        if len(self) >= MOST_WAITING:
            next(iter(self)).abort()
        self[one] = None


class _Handshake(asyncio.Protocol):
    """A connection from accept on, until TLS has begun on it; then ``make`` makes the one that takes its place."""

    def __init__(self, waiting: _Waiting, context: ssl.SSLContext, make: Callable[[], _Connection]) -> None:
        self._waiting, self._context, self._make = waiting, context, make
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._waiting.begin(self)
        self._transport.pause_reading()  # until TLS reads
        self._task = asyncio.get_running_loop().create_task(self._secure())

    def data_received(self, data: bytes) -> None:
        self._received += data  # came with the end of the handshake

    async def _secure(self) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=REQUEST_S
            )
        except OSError:  # it is closed
            return
        finally:
            self._waiting.pop(self, None)
        if secured is not None:
            connection = self._make()
            secured.set_protocol(connection)
            connection.connection_made(secured)
            if self._received:
                connection.data_received(self._received)

    def abort(self) -> None:
        """Close it at once."""
        self._waiting.pop(self, None)
        self._transport.abort()


class _Connection(HttpToolsProtocol):
    """A connection with the limits at the head of this file."""

    def __init__(self, waiting: _Waiting, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._waiting = waiting
        self._deadline: asyncio.TimerHandle | None = None
        self._bytes = 0
        """Received since headers ended or a part of a body came."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's does
        super().connection_made(transport)
        self._waiting.begin(self)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._begin()
        self._bytes += len(data)
        super().data_received(data)
        self._note()
        if self._bytes > MOST_HEADER_BYTES:
            self.abort()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            self.abort()
            raise BufferError("too many requests wait")  # it stops the parser, which has thousands more
        self._bytes = 0
        extensions: Any = {ALLOW: self._begin}
        self.scope["extensions"] = extensions
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._end()
        if not self.transport.is_closing():
            self._waiting[self] = None
        super().on_response_complete()
        self._note()

    def _note(self) -> None:
        """Note if a request is under way."""
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        if cycle is not None and not cycle.response_complete:
            self._waiting.pop(self, None)
            if self._deadline is None:
                self._begin()

    def _begin(self, patience_s: float = REQUEST_S) -> None:
        self._end()
        self._deadline = self.loop.call_later(patience_s, self.abort)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def abort(self) -> None:
        """Close it at once."""
        self._waiting.pop(self, None)
        self.transport.abort()
