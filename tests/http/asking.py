"""A client for the tests: requests by hand, so that nothing is repeated or hidden."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPSConnection
from ssl import SSLContext
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """A status, and a body."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


def ask(
    port: int, path: str, token: str = "", *, method: str = "GET", tls: SSLContext | None = None
) -> Answer:
    """One request on a connection of its own."""
    connection = (
        HTTPConnection("127.0.0.1", port, timeout=20)
        if tls is None
        else HTTPSConnection("localhost", port, timeout=20, context=tls)
    )
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        found = connection.getresponse()
        return Answer(found.status, found.read())
    finally:
        connection.close()
