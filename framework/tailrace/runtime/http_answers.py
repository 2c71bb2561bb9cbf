"""``tailrace run --http``: what a service answers about itself: its only process, or the supervisor for all of its workers.

| path | answer | token |
|---|---|---|
| ``/livez`` | 200. 503, with its name, if one handler has run for ``STUCK_S`` | no |
| ``/readyz`` | 200 if the process has joined, and its tasks are restored and at work; else 503. A silent broker changes nothing | no |
| ``/metrics`` | what ``measuring`` has published, as Prometheus or OpenMetrics text | yes |
| ``/graph`` | the app as a graph, as ``tailrace graph --json`` | yes |

The server's thread reads only what the workers' threads have published, and never a store.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, TypeAlias

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

from tailrace.core.declare.plan import Plan
from tailrace.graph.model import graph_of
from tailrace.http.listening import Listen
from tailrace.http.server import JSON, Receive, Scope, Send, Server, respond
from tailrace.runtime.companions import Companion
from tailrace.runtime.handler_watch import STUCK_S, Stuck
from tailrace.runtime.measuring import BUCKETS, Family, Observed, Seen, merged

_log = logging.getLogger("tailrace.service")
_OPEN: Final = ("/livez", "/readyz")

Source: TypeAlias = Callable[[], tuple[Mapping[str, Seen | None], Sequence[Family]]]
"""Returns the processes by name, and what those that have ended have counted. None: a process does not run, or has not published. The
only process of a service has no name.
"""


class HttpAnswers(Companion):
    """See the head of this file. It is essential: a service that is to answer does not run without."""

    name = "the answers over HTTP"
    essential = True

    def __init__(self, listen: Listen, source: Source, plan: Plan) -> None:
        self._source, self._app = source, plan.app
        self._graph = graph_of([plan]).as_json()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collected(source, plan.app, plan.version))
        self._server = Server(self, listen, _OPEN)
        self._listen = listen

    def begin(self) -> None:
        """Answer from now on. Raises OptionError: the address is taken, or a file of TLS cannot be used."""
        port = self._server.start()
        _log.info("answering", extra={"app": self._app, "host": self._listen.host, "port": port})

    def close(self) -> None:
        """See ``Companion.close``."""
        self._server.close()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return
        status, kind, body = self._answer(scope)
        await respond(scope, send, status, body, kind)

    def _answer(self, scope: Scope) -> tuple[int, bytes, bytes]:
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return 405, JSON, b'{"error":"ask with GET"}'
        if path == "/livez":
            return self._live()
        if path == "/readyz":
            return self._ready()
        if path == "/metrics":
            accept = b",".join(value for name, value in scope["headers"] if name == b"accept").decode(
                "latin-1"
            )
            encode, kind = choose_encoder(accept)
            return 200, kind.encode(), encode(self._registry)
        if path == "/graph":
            return 200, JSON, self._graph
        return 404, JSON, b'{"error":"there are /livez, /readyz, /metrics and /graph"}'

    def _live(self) -> tuple[int, bytes, bytes]:
        turn_age_s, stuck, stuck_s = _worst(self._source)
        said: dict[str, object] = {"seconds_since_turn": round(turn_age_s, 1)}
        if stuck is not None:
            # Its key is for the log: the probe that asks has no token.
            said |= {"handler": stuck[0].get("handler"), "running_s": round(stuck_s, 1)}
        return 503 if stuck_s >= STUCK_S else 200, JSON, msgspec.json.encode(said)

    def _ready(self) -> tuple[int, bytes, bytes]:
        seen = self._source()[0].values()
        found = [one.published for one in seen if one is not None]
        joined = len(found) == len(seen) and all(one.has_joined for one in found)
        tasks = {number for one in found for number in one.tasks}
        waiting = sorted(tasks.difference(*(one.running for one in found)))
        said = {"joined": joined, "tasks": sorted(tasks), "not_running": waiting}
        return 200 if joined and not waiting else 503, JSON, msgspec.json.encode(said)


def _worst(source: Source) -> tuple[float, Stuck | None, float]:
    """The longest time since a turn; the handler that is stuck for the longest time, and for how long."""
    now_s, seen = time.monotonic(), [one for one in source()[0].values() if one is not None]
    turn_age_s = max((now_s - one.published.turn_s for one in seen), default=0.0)
    stuck = min((one.stuck for one in seen if one.stuck is not None), key=lambda one: one[1], default=None)
    return turn_age_s, stuck, 0.0 if stuck is None else now_s - stuck[1]


class _Collected(Collector):
    """What was published, as prometheus_client has it."""

    def __init__(self, source: Source, app: str, version: str) -> None:
        self._source, self._app, self._version = source, app, version

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        about = {"version": self._version, "python": platform.python_version(), "process": str(os.getpid())}
        info = InfoMetricFamily("tailrace_app", "The app that runs.", labels=["app"])
        info.add_metric([self._app], about)
        yield info
        turn_age_s, _, stuck_s = _worst(self._source)
        seen, ended = self._source()
        families = chain.from_iterable(one.published.families for one in seen.values() if one is not None)
        stuck = "For how long a handler has been running that was warned of; else 0."
        now = (
            Family(
                "gauge", "tailrace_turn_age_seconds", "Since a worker's last turn.", (), (((), turn_age_s),)
            ),
            Family("gauge", "tailrace_handler_stuck_seconds", stuck, (), (((), stuck_s),)),
        )
        yield from map(self._family, merged([*now, *families, *ended]))
        yield from _of_processes({name: one.pid for name, one in seen.items() if one is not None})

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


def _of_processes(pids: dict[str, int]) -> Iterable[Metric]:
    """CPU, memory and files of each process; of a service with workers, with their names as a label."""
    if "" not in pids:
        pids = {"supervisor": os.getpid(), **pids}
    found: dict[str, Metric] = {}
    for name, pid in pids.items():
        for one in ProcessCollector(pid=partial(int, pid), registry=None).collect():
            kept = found.setdefault(one.name, Metric(one.name, one.documentation, one.type))
            for sample in one.samples:
                kept.add_sample(sample.name, {"worker": name} if name else {}, sample.value)
    return found.values()


def _buckets(observed: Observed) -> list[tuple[str, float]]:
    """By upper bound: how many values are at most that."""
    bounds, below, found = [*map(repr, BUCKETS), "+Inf"], 0, list[tuple[str, float]]()
    for bound, count in zip(bounds, observed.counts, strict=True):
        below += count
        found.append((bound, below))
    return found
