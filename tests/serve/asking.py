"""A server on a free port of this machine, in a thread of the test, and questions to it."""

from __future__ import annotations

import http.client
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tailrace.http.listening import Listen
from tailrace.http.server import Server
from tailrace.log.opening import open_log
from tailrace.processes.app_loading import find_app
from tailrace.serve.answers import Questions
from tailrace.serve.followers import Followers
from tailrace.serve.page.history import Replays
from tailrace.serve.page.page import Page
from tailrace.serve.web import Web
from tailrace.state import MemoryStore
from tests.runtime.processes import wait_until
from tests.serve.stocked import DEPOT


class Said(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Asked:
    """A server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str, method: str = "GET", **headers: str) -> Said:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("host", "localhost")
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            body = response.read()
            is_json = response.headers.get("content-type") == "application/json"
            return Said(
                response.status,
                msgspec.json.decode(body) if is_json and body else body,
                {name: ", ".join(response.headers.get_all(name, [])) for name in response.headers},
            )
        finally:
            connection.close()

    def until_ready(self) -> None:
        wait_until(lambda: self.ask("/readyz").status == 200, "all partitions are followed")


_HERE = Listen("127.0.0.1", 0)


@contextmanager
def serving(
    place: Path | str, numbers: Collection[int] = (0, 1), app: str = DEPOT, listen: Listen = _HERE
) -> Generator[Asked]:
    log = open_log(place)
    plan = find_app(app).plan()
    questions = Questions(plan)
    followers = Followers(plan, log, numbers, lambda *_: MemoryStore())
    page = Page(questions, followers, log, Replays(app, place), may_redrive=listen.knows_clients)
    server = Server(Web(questions, followers, page), listen)
    try:
        yield Asked(server.start())
    finally:
        server.close()
        followers.close()
        log.close()
