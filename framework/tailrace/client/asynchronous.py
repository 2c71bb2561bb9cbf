"""The client for async code: each call runs in a thread, so the event loop is free meanwhile."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

from tailrace.client.client import Client, Read
from tailrace.core.declare.actor import Actor
from tailrace.core.declare.app import App
from tailrace.core.declare.topic import Table, Topic

E = TypeVar("E")
K = TypeVar("K")
A = TypeVar("A", bound=Actor)

_AT_ONCE = 100


class AsyncClient:
    """As ``Client``, for async code; a context manager of ``async with``. Sends that run at the same time share commits."""

    def __init__(self, app: App, log: str | Path) -> None:
        self._client = Client(app, log)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the connection, as ``Client.close``."""
        await to_thread(self._client.close)

    async def send(
        self, topic: Topic[E, Any], *events: E, timestamp_ms: int | datetime | None = None
    ) -> dict[int, int]:
        """Append events, as ``Client.send``. If the call is cancelled, the events may be committed or not."""
        outputs = self._client.outputs(topic, events, timestamp_ms)  # as the events are now
        return await to_thread(self._client.commit, topic, outputs)

    async def read(
        self, topic: Topic[E, Any], *, after: Mapping[int, int] | None = None, wait_s: float = 0.0
    ) -> AsyncIterator[Read[E]]:
        """The committed records of a topic, as ``Client.read``."""
        found = self._client.read(topic, after=after, wait_s=wait_s)

        def some() -> list[Read[E]]:
            return [*islice(found, _AT_ONCE)]

        while records := await to_thread(some):
            for one in records:
                yield one

    @overload
    async def get(self, of: Table[E, K], key: K) -> E | None: ...
    @overload
    async def get(self, of: type[A], key: Any) -> A | None: ...
    async def get(self, of: Any, key: Any) -> Any:
        """The committed instance of a key, or the last event of a table's key, as ``Client.get``."""
        return await to_thread(self._client.get, of, key)
