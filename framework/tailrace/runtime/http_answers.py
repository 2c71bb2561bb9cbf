"""``tailrace run --http``: what a process of a service answers about itself.

| path | answer | token |
|---|---|---|
| ``/livez`` | 200. 503, with what it does, if one handler was warned of and has run for ``STUCK_S`` | no |
| ``/readyz`` | 200 if the process has joined, and its tasks are restored and at work; else 503. A silent broker changes nothing | no |
| ``/metrics`` | what ``measuring`` has published, as Prometheus or OpenMetrics text | yes |
| ``/graph`` | the app as a graph, as ``tailrace graph --json`` | yes |

The server's thread reads only what the worker's thread has published, and never a store.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tailrace.http.listening import Listen
from tailrace.http.server import Receive, Scope, Send, Server
from tailrace.runtime.companions import Companion
from tailrace.runtime.handler_watch import HandlerWatch
from tailrace.runtime.measuring import BUCKETS, Family, Measuring, Observed

if TYPE_CHECKING:
    from tailrace.runtime.host import Host

_log = logging.getLogger("tailrace.service")
STUCK_S: Final = 60.0
_OPEN: Final = ("/livez", "/readyz")
_JSON: Final = "application/json"


class HttpAnswers(Companion):
    """See the head of this file. It is essential: a service that is to answer does not run without."""

    name = "the answers over HTTP"
    essential = True

    def __init__(self, listen: Listen, measuring: Measuring, watch: HandlerWatch, graph: bytes) -> None:
        self._measuring, self._watch, self._graph = measuring, watch, graph
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._server = Server(self, listen, _OPEN)
        self._listen = listen

    def begin(self, host: Host, /) -> None:
        """See ``Companion.begin``. Raises OptionError: the address is taken, or a file of TLS cannot be used."""
        super().begin(host)
        self._registry.register(_Collected(self._measuring, self._watch, host.plan.app, host.plan.version))
        port = self._server.start()
        _log.info("answering", extra={"app": host.plan.app, "host": self._listen.host, "port": port})

    def close(self) -> None:
        """See ``Companion.close``."""
        self._server.close()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return
        status, kind, body = self._answer(scope)
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, scope: Scope) -> tuple[int, str, bytes]:
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return 405, _JSON, b'{"error":"ask with GET"}'
        if path == "/livez":
            return self._live()
        if path == "/readyz":
            return self._ready()
        if path == "/metrics":
            accept = b",".join(value for name, value in scope["headers"] if name == b"accept").decode(
                "latin-1"
            )
            encode, kind = choose_encoder(accept)
            return 200, kind, encode(self._registry)
        if path == "/graph":
            return 200, _JSON, self._graph
        return 404, _JSON, b'{"error":"there are /livez, /readyz, /metrics and /graph"}'

    def _live(self) -> tuple[int, str, bytes]:
        now_s, stuck = time.monotonic(), self._watch.stuck
        said: dict[str, object] = {"seconds_since_turn": round(now_s - self._measuring.turn_s, 1)}
        if stuck is not None:
            said |= {**stuck[0].fields(), "running_s": round(now_s - stuck[1], 1)}
        is_stuck = stuck is not None and now_s - stuck[1] >= STUCK_S
        return 503 if is_stuck else 200, _JSON, msgspec.json.encode(said)

    def _ready(self) -> tuple[int, str, bytes]:
        found = self._measuring.published
        waiting = sorted({*found.tasks} - {*found.running})
        said = {"joined": found.has_joined, "tasks": found.tasks, "not_running": waiting}
        return 200 if found.has_joined and not waiting else 503, _JSON, msgspec.json.encode(said)


class _Collected(Collector):
    """What was published, as prometheus_client has it."""

    def __init__(self, measuring: Measuring, watch: HandlerWatch, app: str, version: str) -> None:
        self._measuring, self._watch, self._app = measuring, watch, app
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        about = {"version": self._version, "python": platform.python_version(), "process": str(os.getpid())}
        info = InfoMetricFamily("tailrace_app", "The app that runs.", labels=["app"])
        info.add_metric([self._app], about)
        yield info
        now_s, stuck = time.monotonic(), self._watch.stuck
        for name, said, value in (
            ("tailrace_turn_age_seconds", "Since the worker's last turn.", now_s - self._measuring.turn_s),
            (
                "tailrace_handler_stuck_seconds",
                "For how long a handler has been running that was warned of; else 0.",
                0.0 if stuck is None else now_s - stuck[1],
            ),
        ):
            gauge = GaugeMetricFamily(name, said, labels=["app"])
            gauge.add_metric([self._app], value)
            yield gauge
        for one in self._measuring.published.families:
            yield self._family(one)

    def _family(self, one: Family) -> Metric:
        labels = ["app", *one.labels]
        if one.kind == "histogram":
            histogram = HistogramMetricFamily(one.name, one.help, labels=labels)
            for values, value in one.samples:
                assert isinstance(value, Observed)
                histogram.add_metric([self._app, *values], _buckets(value), value.total)
            return histogram
        make = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
        family = make(one.name, one.help, labels=labels)
        for values, value in one.samples:
            assert not isinstance(value, Observed)
            family.add_metric([self._app, *values], value)
        return family


def _buckets(observed: Observed) -> list[tuple[str, float]]:
    """By upper bound: how many values are at most that."""
    bounds, below, found = [*map(repr, BUCKETS), "+Inf"], 0, list[tuple[str, float]]()
    for bound, count in zip(bounds, observed.counts, strict=True):
        below += count
        found.append((bound, below))
    return found
