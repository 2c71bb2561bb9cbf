"""Sends a span to OpenTelemetry for each sampled record of an app with ``tracing=True``.

A span reaches from the clock reading with which its record was handled to the commit that has made its results visible: what is aborted has
none. Where to send it, and how, is set by the environment variables of OpenTelemetry (``OTEL_EXPORTER_OTLP_ENDPOINT`` and others).
"""

from __future__ import annotations

import os
import time
from typing import Any, cast

from tailrace.core.engine.task import CommitBatch
from tailrace.core.engine.trace import TRACE, Traced
from tailrace.core.extras import ExtraModule
from tailrace.runtime.companions import Companion

_resources: Any = ExtraModule("opentelemetry.sdk.resources", "Traces", "otel")
_sdk: Any = ExtraModule("opentelemetry.sdk.trace", "Traces", "otel")
_export: Any = ExtraModule("opentelemetry.sdk.trace.export", "Traces", "otel")
_otlp: Any = ExtraModule("opentelemetry.exporter.otlp.proto.http.trace_exporter", "Traces", "otel")
_api: Any = ExtraModule("opentelemetry.trace", "Traces", "otel")


def is_wanted() -> bool:
    """Whether the environment says where spans go."""
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{one}ENDPOINT") for one in ("", "TRACES_"))


class Tracing(Companion):
    """See the head of this file. A collector that does not answer delays nothing: its spans are lost, and the library says so."""

    name = "the traces"
    _processor: Any = None

    def begin(self) -> None:
        """See ``Companion.begin``. MissingExtraError: OpenTelemetry is not installed."""
        assert self.host is not None
        plan = self.host.plan
        said = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", plan.app),
            "service.version": plan.version,
        }
        self._resource = _resources.Resource.create(said)
        self._processor = _export.BatchSpanProcessor(_otlp.OTLPSpanExporter())

    def committed(self, _number: int, batch: CommitBatch, /) -> None:
        """See ``Companion.committed``."""
        for one in batch.measurements:
            if one.kind == TRACE:
                self._processor.on_end(self._span(cast("Traced", one.name), one.value))

    def _span(self, one: Traced, since_ms: float) -> Any:
        end_ns = time.time_ns()
        app, topic, partition, offset, *released = one.place.split("/")
        return _sdk.ReadableSpan(
            " ".join(["process", topic, *released]),
            context=self._context(one, one.span, is_remote=False),
            parent=self._context(one, one.parent, is_remote=True),
            resource=self._resource,
            kind=_api.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.type": "process",
                "messaging.destination.name": topic,
                "messaging.destination.partition.id": partition,
                "messaging.kafka.offset": int(offset),
                "messaging.consumer.group.name": app,
            },
            start_time=min(int(since_ms) * 1_000_000, end_ns),
            end_time=end_ns,
        )

    def _context(self, one: Traced, span: str, *, is_remote: bool) -> Any:
        flags = _api.TraceFlags(int(one.flags, 16))
        return _api.SpanContext(int(one.trace, 16), int(span, 16), is_remote, flags)

    def close(self) -> None:
        """Send what is left."""
        if self._processor is not None:
            self._processor.shutdown()
