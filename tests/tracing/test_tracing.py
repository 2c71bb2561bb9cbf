"""Traces of an app, from its headers to the spans that a collector gets, against plain Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tailrace.core.engine.redriven import is_redriven
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import done, records
from tests.tracing.app import Order

APP = "tests.tracing.app:app"
pytestmark = pytest.mark.usefixtures("quiet_logs")


class Collector(HTTPServer):
    """Gets the spans, as a collector of OpenTelemetry does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.names: set[str] = set()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # the name that http.server calls
        assert isinstance(self.server, Collector)
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in sent.resource_spans:
            said = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.server.names.add(said["service.name"])
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def parent(number: int, *, sampled: bool = True) -> str:
    return f"00-{number + 1:032x}-{number + 1:016x}-{'01' if sampled else '00'}"


def span_of(topic: str, partition: int, offset: int) -> str:
    place = f"traced/{topic}/{partition}/{offset}"
    return blake2b(place.encode(), digest_size=8).hexdigest()


def go(path: Path) -> None:
    done("run", APP, "--until-end", "--allow-dead-letters", "--log", path, "--state", path.parent / "state")


def test_a_trace_continues_in_all_that_follows_from_its_record(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    done("topics", "apply", "--app", APP, "--log", path)
    log = EmbeddedLog(path)
    headers = [parent(0), parent(1, sampled=False), None, parent(3), "00-nonsense", parent(5), parent(6)]
    orders = [Order(f"k{at % 3}", 1_000 + 10 * at, fails=at == 3) for at in range(len(headers))]
    writer = log.writer("test")
    for order, header in zip(orders, headers, strict=True):
        given = (("traceparent", header.encode()),) if header else ()
        writer.append([Output("orders", order.key.encode(), msgspec.json.encode(order), order.at, given)])
    writer.commit()
    writer.close()
    log.close()
    monkeypatch.setenv("BROKEN", "1")
    go(path)
    (_,) = done("dead-letters", "list", APP, "--json", "--log", path).lines
    monkeypatch.delenv("BROKEN")
    done("dead-letters", "redrive", APP, "--all", "--log", path)
    go(path)
    # By plain Python: what each order must have left behind.
    header_of = {order.at: header for order, header in zip(orders, headers, strict=True)}
    inbox = [("traced.inbox", number, one) for number, one in records(path, "traced.inbox")]
    ordered = [("orders", number, one) for number, one in records(path, "orders")]
    redriven = [one for one in inbox if is_redriven(one[2].headers)]
    assert len(redriven) == 1
    places = {  # of the redriven order, that in the inbox
        msgspec.json.decode(one.value or b"", type=Order).at: (topic, number, one.offset)
        for topic, number, one in [*ordered, *redriven]
    }
    spans = dict[str, tuple[str, str]]()
    messages = {
        one.timestamp_ms: (topic, number, one.offset)
        for topic, number, one in inbox
        if not is_redriven(one.headers)
    }
    for topic, of in (("shipped", places), ("billed", messages)):
        for _, one in records(path, topic):
            order = msgspec.json.decode(one.value or b"", type=Order)
            found = dict(one.headers).get("traceparent", b"").decode()
            header = header_of.get(order.at)
            if order.key.startswith("timer") or not header or "nonsense" in header:
                assert found == "", (topic, order)
                continue
            own = span_of(*of[order.at])
            assert found == f"{header[:36]}{own}{header[-3:]}", (topic, order)
    for at, header in header_of.items():
        if header and header.endswith("-01"):
            own = span_of(*places[at])
            spans[own] = header[3:35], header[36:52]
            spans[span_of(*messages[at])] = header[3:35], own
    got = {one.span_id.hex(): (one.trace_id.hex(), one.parent_span_id.hex()) for one in collector.spans}
    assert got == spans
    assert len(collector.spans) == len(spans), "none is sent twice"
    assert all(one.start_time_unix_nano <= one.end_time_unix_nano for one in collector.spans)
    assert collector.names == {"traced"}
    done("replay", APP, "--log", path, "--state", tmp_path / "state", "--compare")
    assert len(collector.spans) == len(spans), "a replay sends none"
