"""Tailrace: event-driven services as durable keyed actors, exactly once on an event log, replayed bit for bit.

    import tailrace as tr

    class Departure(msgspec.Struct, frozen=True):
        tail: tr.Key[str]
        at: tr.EventTime[int]

    app = tr.App("flights")
    departures = app.topic("departures", Departure, out_of_order="30m")

    @app.actor
    class Aircraft(tr.Actor):
        legs: int = 0

        @tr.process(departures)
        def departed(self, event: Departure, ctx: tr.Context[str]) -> None:
            self.legs += 1

The public API is what this module exports. Everything else may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace.core.declare.actor import Actor
from tailrace.core.declare.app import App as CoreApp
from tailrace.core.declare.broadcast import Shared, shared
from tailrace.core.declare.context import Context
from tailrace.core.declare.context_timers import KeyTimer
from tailrace.core.declare.event_marks import EventTime, Key, Keyed
from tailrace.core.declare.event_time import ARRIVAL_TIME, RECORD_TIME
from tailrace.core.declare.fields import field
from tailrace.core.declare.handlers import (
    on_delete,
    on_message,
    on_processing_timer,
    on_timer,
    process,
    query,
)
from tailrace.core.declare.migrations import migrates
from tailrace.core.declare.topic import Stream, Table, Topic
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.errors import (
    DefinitionError,
    DurableTypeError,
    DurableValueError,
    HandlerError,
    ReplayDivergedError,
    TailraceError,
    UsageError,
)
from tailrace.core.handling.collections import ListState, MapState
from tailrace.library import agg, windows
from tailrace.library.app import App
from tailrace.library.gather import Gathered
from tailrace.library.pairs import Pair
from tailrace.library.rolling import Top
from tailrace.library.window_field import Windows, on_window, windowed
from tailrace.library.windowed import Windowed


def _start(app: CoreApp, options: Mapping[str, Any]) -> None:
    from tailrace.cli.script import run_app  # noqa: PLC0415  # most importers of an app do not start it

    run_app(app, options)


App._starter = _start

if TYPE_CHECKING:
    from tailrace.client import AsyncClient, Client
else:

    def __getattr__(name: str) -> Any:
        """Import the clients when they are first used: most importers of an app need none."""
        if name in ("AsyncClient", "Client"):
            return getattr(import_module("tailrace.client"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ARRIVAL_TIME",
    "NO_WATERMARK",
    "RECORD_TIME",
    "Actor",
    "App",
    "AsyncClient",
    "Client",
    "Context",
    "DefinitionError",
    "DurableTypeError",
    "DurableValueError",
    "EventTime",
    "Gathered",
    "HandlerError",
    "Key",
    "KeyTimer",
    "Keyed",
    "ListState",
    "MapState",
    "Pair",
    "ReplayDivergedError",
    "Shared",
    "Stream",
    "Table",
    "TailraceError",
    "Top",
    "Topic",
    "UsageError",
    "Windowed",
    "Windows",
    "agg",
    "field",
    "migrates",
    "on_delete",
    "on_message",
    "on_processing_timer",
    "on_timer",
    "on_window",
    "process",
    "query",
    "shared",
    "windowed",
    "windows",
]
