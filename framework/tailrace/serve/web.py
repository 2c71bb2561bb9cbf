"""Answers over HTTP: an ASGI application that also follows the log, in the same thread.

The loop of events does both in turn: a step of a follower takes some milliseconds, a question less than one. So no answer sees half a
commit, and no lock is needed. Keys are read from the raw path: ``%2F`` in a key is no separator, and ``..`` is a key like others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, unquote_to_bytes

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tailrace.http.server import Header, Receive, Scope, Send, respond
from tailrace.serve.answers import Questions
from tailrace.serve.followers import Followers
from tailrace.serve.openapi import description
from tailrace.serve.page.page import Page
from tailrace.serve.unanswered import BAD_REQUEST, NOT_FOUND, NOT_YET, Unanswered

ASKED: Final = b"/actors/", b"/tables/"
_POLL_S: Final = 0.02
_ARGUMENTS: Final = 100
_MORE: Final[dict[int, tuple[Header, ...]]] = {
    NOT_YET: ((b"retry-after", b"1"),),
    HTTPStatus.METHOD_NOT_ALLOWED: ((b"allow", b"GET, HEAD"),),
}
_encode = msgspec.json.Encoder().encode


class Refusal(msgspec.Struct, frozen=True):
    """The body of a response without an answer."""

    status: int
    error: str


class Web:
    """The application. While it runs, it follows; ``followers`` must not be used by others meanwhile."""

    def __init__(self, questions: Questions, followers: Followers, page: Page) -> None:
        self._questions, self._followers = questions, followers
        self._openapi = _encode(description(questions))
        self._others = Starlette(
            routes=[
                Route("/openapi.json", self._described),
                Route("/livez", self._alive),
                Route("/readyz", self._ready),
                *page.routes,
            ],
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Questions are not routed by Starlette: that takes as long as the answer."""
        if scope["type"] != "http" or not scope["raw_path"].startswith(ASKED):
            await self._others(scope, receive, send)
            return
        status, body = self._answered(scope)
        await respond(scope, send, status, body, more=_MORE.get(status, ()))

    def _answered(self, scope: Scope) -> tuple[int, bytes]:
        if scope["method"] not in ("GET", "HEAD"):
            status = HTTPStatus.METHOD_NOT_ALLOWED
            return status, _encode(Refusal(status, "A question is asked with GET."))
        try:
            kind, of, key, name = _parts(scope["raw_path"])
            given = _arguments(scope["query_string"])
            answer = self._followers.answer(self._questions.question(of, key, name, given, kind))
            return HTTPStatus.OK, _encode(answer)
        except Unanswered as error:
            return error.status, _encode(Refusal(error.status, str(error)))

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncGenerator[None]:
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            worked = False
            for one in self._followers.all:
                if one.step():
                    worked = True
                    await asyncio.sleep(0)
            if not worked:
                await asyncio.sleep(_POLL_S)

    async def _described(self, _request: Request) -> Response:
        return Response(self._openapi, media_type="application/json")

    async def _alive(self, _request: Request) -> Response:
        return Response(b"{}", media_type="application/json")

    async def _ready(self, _request: Request) -> Response:
        reports = self._followers.reports()
        is_ready = all(one.offset is not None for one in reports)
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(_encode({"partitions": reports}), status, media_type="application/json")


def _parts(path: bytes) -> tuple[str, str, bytes, str]:
    """The parts of a path: ``actor`` or ``table``, its name, percent-encoded key, and name."""
    _, kind, *parts = path.split(b"/")
    if not 2 <= len(parts) <= 3:
        raise Unanswered(
            "this path asks nothing",
            status=NOT_FOUND,
            hint="Ask /actors/ACTOR/KEY, /actors/ACTOR/KEY/FIELD, /actors/ACTOR/KEY/QUERY?NAME=VALUE, or of a table /tables/TABLE/KEY. A / in a key is written %2F.",
        )
    return _text(kind[:-1]), _text(parts[0]), parts[1], _text(parts[2]) if len(parts) == 3 else ""


def _text(part: bytes) -> str:
    return unquote_to_bytes(part).decode(errors="replace")


def _arguments(query: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_ARGUMENTS
        )
    except ValueError as error:
        raise Unanswered(
            f"the arguments cannot be read: {error}",
            status=BAD_REQUEST,
            hint=f"Percent-encode them as UTF-8; there can be {_ARGUMENTS}.",
        ) from None
