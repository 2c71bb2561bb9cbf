"""The routes of the page. What it shows of the log is read in a thread, at most every few seconds however many people look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from tailrace.core.durations import spelled
from tailrace.core.engine.describe_rows import instant
from tailrace.core.errors import TailraceError
from tailrace.graph.model import graph_of
from tailrace.history.dead_letters.letters import DeadLetter, parse_id
from tailrace.history.dead_letters.redriving import close_letters, last_open_letters
from tailrace.history.status.inspection import AppReport, inspect_app
from tailrace.http.server import ALLOW
from tailrace.log.interface import ServiceLog
from tailrace.log.tasks import owner_of
from tailrace.serve.answers import Questions
from tailrace.serve.followers import Followers
from tailrace.serve.page.dev import Dev
from tailrace.serve.page.drawing import Drawing, drawing_of
from tailrace.serve.page.history import Replays
from tailrace.serve.unanswered import BAD_REQUEST, NOT_YET, Unanswered

_FRESH_S: Final = 3.0
"""For how long a report is shown again."""
_LONG_S: Final = 75.0
"""More than a replay takes at most."""
_LETTERS: Final = 50
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with none, a browser does not say that a form is of this page
    "cache-control": "no-store",
}


class _Seen(NamedTuple):
    """A report, when it was made, and the records per second that each input was read at since the one before."""

    at_s: float
    report: AppReport
    rates: dict[str, float]


class Page:
    """The page of an app. ``log`` is only read, but that dead letters are redriven if ``may_redrive``: if who asks is known.

    ``dev``: what else it does in a session of `tailrace dev`.
    """

    def __init__(
        self,
        questions: Questions,
        followers: Followers,
        log: ServiceLog,
        replays: Replays,
        *,
        may_redrive: bool = False,
        dev: Dev | None = None,
    ) -> None:
        self._may_redrive = may_redrive or dev is not None
        self._dev = dev
        self._questions, self._followers, self._log = questions, followers, log
        self._replays = replays
        self._plan = questions.plan
        self._graph = graph_of([self._plan])
        self._seen: _Seen | None = None
        self._letters_seen: tuple[float, list[DeadLetter]] | None = None
        self._looking = asyncio.Lock()
        self._templates = Environment(
            loader=PackageLoader("tailrace.serve.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Any] = {"instant": _instant, "ago": _ago, "json": _json}
        self._templates.filters.update(filters)

    @property
    def routes(self) -> list[Route]:
        """The routes of the page."""
        of_dev = () if self._dev is None else ("/dev/kill", "/dev/replay")
        return [
            Route("/", self._overview),
            Route("/keys", self._key),
            Route("/history", self._history),
            Route("/status", self._status),
            Route("/dead-letters", self._letters),
            Route("/dead-letters/redrive", self._redrive, methods=["POST"]),
            *(Route(path, self._develop, methods=["POST"]) for path in of_dev),
        ]

    async def _overview(self, _request: Request) -> Response:
        async def content() -> dict[str, Any]:
            seen = await self._look()
            return {
                "report": seen.report,
                "rates": seen.rates,
                "drawing": self._drawn(seen),
                "followers": self._followers.reports(),
            }

        return await self._shown("overview.html", content)

    async def _status(self, _request: Request) -> Response:
        """As ``tailrace status --json``."""
        try:
            said, status = msgspec.json.encode((await self._look()).report), HTTPStatus.OK
        except TailraceError as why:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            said = msgspec.json.encode({"status": status, "error": str(why)})
        return Response(said, status, media_type="application/json")

    async def _key(self, request: Request) -> Response:
        given = request.query_params
        actor, key = given.get("actor", ""), given.get("key", "")

        async def content() -> dict[str, Any]:
            answer = None
            if actor:
                answer = self._followers.answer(
                    self._questions.question(actor, self._in_url(actor, key), "", {})
                )
            names = [*self._questions.actors, *self._questions.tables]
            return {"names": names, "actor": actor, "key": key, "answer": answer}

        return await self._shown("key.html", content)

    async def _history(self, request: Request) -> Response:
        actor, key = request.query_params.get("actor", ""), request.query_params.get("key", "")

        async def content() -> dict[str, Any]:
            request.scope["extensions"][ALLOW](_LONG_S)
            asked = self._questions.question(actor, self._in_url(actor, key), "", {}, "actor")
            trace = await run_in_threadpool(self._replays.trace, key, asked.partition)
            return {"actor": actor, "key": key, "trace": trace}

        return await self._shown("history.html", content)

    def _in_url(self, actor: str, key: str) -> str:
        """A typed key as it is written in a URL. One of bytes is typed as that."""
        plan = self._questions.actors.get(actor) or self._questions.tables.get(actor)
        return key if plan is not None and plan.key_codec.type is bytes else quote(key, safe="")

    async def _letters(self, request: Request) -> Response:
        async def content() -> dict[str, Any]:
            async with self._looking:
                seen = self._letters_seen
                if seen is None or time.monotonic() - seen[0] > _FRESH_S:
                    letters = await run_in_threadpool(self._read_letters)
                    seen = self._letters_seen = time.monotonic(), letters
            return {
                "letters": seen[1],
                "most": _LETTERS,
                "may_redrive": self._may_redrive,
                "redriven": request.query_params.get("redriven", ""),
            }

        return await self._shown("letters.html", content)

    async def _redrive(self, request: Request) -> Response:
        """Redrive one letter, and show all again."""
        id_ = request.query_params.get("id", "")

        async def content() -> dict[str, Any]:
            if not self._may_redrive:
                raise Unanswered(
                    "dead letters are redriven here only for who is known",
                    status=HTTPStatus.FORBIDDEN,
                    hint="Start tailrace serve with --http-token-file or --http-client-ca, or use tailrace dead-letters redrive.",
                )
            _check_own(request)
            async with self._looking:
                sent = [] if parse_id(id_) is None else await run_in_threadpool(self._sent, id_)
                self._letters_seen = None
            if not sent:
                raise Unanswered(
                    f"no dead letter {id_!r} is left to redrive",
                    status=HTTPStatus.CONFLICT,
                    hint="There is none, it was redriven before, or it has no record: that of a timer.",
                )
            return {}

        return await self._then(f"/dead-letters?redriven={id_}", content)

    async def _develop(self, request: Request) -> Response:
        """Do what a button of a development session says."""
        dev = self._dev

        async def content() -> dict[str, Any]:
            assert dev is not None
            _check_own(request)
            request.scope["extensions"][ALLOW](_LONG_S)
            if request.url.path == "/dev/kill":
                await run_in_threadpool(dev.kill, self._owners)
            else:
                await run_in_threadpool(dev.replay)
            self._seen = None
            return {}

        return await self._then("/", content)

    def _owners(self) -> set[int]:
        return {one.owner.pid if one.owner else 0 for one in self._inspect().tasks}

    async def _then(self, path: str, action: Callable[[], Any]) -> Response:
        """The page at a path, after an action; or the error of the action."""
        shown = await self._shown("error.html", action)
        if shown.status_code != HTTPStatus.OK:
            return shown
        return RedirectResponse(path, HTTPStatus.SEE_OTHER, headers=_HEADERS)

    async def _shown(self, template: str, content: Callable[[], Any]) -> Response:
        """A page; or the error in its place, with its status."""
        found: dict[str, Any] = {}
        status, error = 200, ""
        try:
            found = await content()
        except Unanswered as why:
            status, error = why.status, str(why)
        except TailraceError as why:
            status, error = NOT_YET, str(why)
        except UnicodeError:
            status, error = BAD_REQUEST, "The key is no text."
        if error:
            template = "error.html"
        html = self._templates.get_template(template).render(
            app=self._plan.app, error=error, dev=self._dev, **found
        )
        return HTMLResponse(html, status, headers=_HEADERS)

    # --- what is read of the log

    async def _look(self) -> _Seen:
        async with self._looking:
            if self._seen is None or time.monotonic() - self._seen.at_s > _FRESH_S:
                before = self._seen
                report = await run_in_threadpool(self._inspect)
                now_s = time.monotonic()
                self._seen = _Seen(now_s, report, {} if before is None else _rates(before, report, now_s))
            return self._seen

    def _inspect(self) -> AppReport:
        return inspect_app(self._plan, self._log, time.time_ns() // 1_000_000, partial(owner_of, self._log))

    def _read_letters(self) -> list[DeadLetter]:
        return last_open_letters(self._log, self._plan.app, _LETTERS)

    def _sent(self, id_: str) -> list[str]:
        now_ms = time.time_ns() // 1_000_000
        return close_letters(
            self._log, self._plan.app, "redriven", lambda one: one.id == id_, now_ms=now_ms
        ).done

    def _drawn(self, seen: _Seen) -> Drawing:
        facts: dict[str, tuple[str, ...]] = {}
        for task in seen.report.tasks:
            for source in task.sources:
                lag = sum(
                    one.lag for each in seen.report.tasks for one in each.sources if one.topic == source.topic
                )
                rate = seen.rates.get(source.topic)
                pace = () if rate is None else (f"{rate:,.0f} records/s",)
                facts[f"topic:{source.topic}"] = (f"{lag:,} to read", *pace)
            for place, one in enumerate(task.operators):
                marks = [each.operators[place].watermark_ms for each in seen.report.tasks]
                known = [mark for mark in marks if mark is not None]
                lowest = _instant(min(known)) if len(known) == len(marks) else "no watermark"
                facts[f"{one.kind}:{one.name}"] = (lowest[:19].replace("T", " "),)
        return drawing_of(self._graph, facts)


def _check_own(request: Request) -> None:
    """Raise Unanswered for what was not sent by a form of this page: a browser also posts those of others."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    own = [f"https://{host}", *[f"http://{host}"][: request.url.scheme == "http"]]  # a proxy may add TLS
    if origin not in own:
        raise Unanswered("this was not sent by the page itself", status=HTTPStatus.FORBIDDEN)


def _rates(before: _Seen, report: AppReport, now_s: float) -> dict[str, float]:
    """Records per second by input. A partition counts by its position; the gaps of aborted commits count, too."""
    was = {
        (task.partition, source.topic): source.position
        for task in before.report.tasks
        for source in task.sources
    }
    found: dict[str, float] = {}
    for task in report.tasks:
        for source in task.sources:
            moved = source.position - was.get((task.partition, source.topic), source.position)
            found[source.topic] = found.get(source.topic, 0.0) + moved / (now_s - before.at_s)
    return found


def _instant(time_ms: int | None) -> str:
    return "none" if time_ms is None else instant(time_ms)


def _ago(time_ms: int | None, now_ms: int) -> str:
    if time_ms is None:
        return "never"
    passed_ms = max(0, now_ms - time_ms)
    return f"{spelled(passed_ms // 1_000 * 1_000) if passed_ms >= 1_000 else 'less than 1s'} ago"


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
