"""Topics of a real registry: records of Confluent's serializers are read and back, and what a registry refuses or does not answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry import avro as of_avro
from confluent_kafka.schema_registry import json_schema as of_json
from confluent_kafka.serialization import MessageField, SerializationContext

from tailrace.core.names import dead_letters_of
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tests.registry.conftest import Apicurio

pytestmark = pytest.mark.usefixtures("quiet_logs")
APP = "tests.registry.shop:app"
START = datetime(2026, 1, 1, tzinfo=UTC)
GONE = {"TAILRACE_REGISTRY_URL": "http://127.0.0.1:9"}
SERIALIZERS: tuple[Any, ...] = (
    of_avro.AvroSerializer, of_avro.AvroDeserializer, of_json.JSONSerializer, of_json.JSONDeserializer,
)  # fmt: skip
"""Confluent's, whose declared types do not have their arguments."""
AvroSerializer, AvroDeserializer, JSONSerializer, JSONDeserializer = SERIALIZERS
FORMATS = ("avro", "json_schema")
Encode = Callable[[dict[str, Any]], bytes]

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "com.shop.PlacedOrder",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "customer", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "OrderKind", "symbols": ["SHOP", "WEB"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "OrderLine",
                    "fields": [{"name": "number", "type": "int"}, {"name": "what", "type": "string"}],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "note", "type": ["string", "null"]},
    ],
}
"""Not the schema that Tailrace makes of the struct: other names of records, order of fields, and widths of numbers."""
JSON: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "PlacedOrder",
    "type": "object",
    "properties": {"customer": {"type": "string"}, "price": {"type": "string"}},
    "required": ["customer", "at", "price"],
}
NEW_FIELD = {"name": "shipping", "type": "string", "default": "post"}


def made(count: int) -> list[dict[str, Any]]:
    """Orders as the values of a producer."""
    return [
        {
            "id": UUID(int=number),
            "customer": ("Ada", "Grace", "Edsger")[number % 3],
            "at": START + timedelta(seconds=number),
            "price": Decimal(number) / 4,
            "kind": ("WEB", "SHOP")[number % 2],
            "day": date(2026, 1, 1 + number % 7),
            "lines": [{"what": f"thing {one}", "number": one} for one in range(number % 3)],
            "tags": {"vip": number} if number % 4 == 0 else {},
            "note": None if number % 5 else f"note {number}",
        }
        for number in range(count)
    ]


def producer_of(client: SchemaRegistryClient, format_: str, topic: str, more: Iterable[Any] = ()) -> Encode:
    """Confluent's serializer."""
    context = SerializationContext(topic, MessageField.VALUE)
    if format_ == "json_schema":
        as_json = JSONSerializer(
            json.dumps(JSON), client, lambda order, _: json.loads(json.dumps(order, default=str))
        )
        return lambda order: as_json({**order, "at": order["at"].isoformat()}, context) or b""
    avro = AvroSerializer(client, json.dumps({**AVRO, "fields": [*AVRO["fields"], *more]}))
    return lambda order: avro(order, context) or b""


def reader_of(client: SchemaRegistryClient, format_: str, topic: str) -> Callable[[bytes], Any]:
    """Confluent's deserializer, by the schema that Tailrace has registered."""
    context = SerializationContext(topic, MessageField.VALUE)
    if format_ == "avro":
        return lambda data: AvroDeserializer(client)(data, context)
    schema = client.get_latest_version(f"{topic}-value").schema.schema_str
    return lambda data: JSONDeserializer(schema, schema_registry_client=client)(data, context)


def expected(orders: Iterable[dict[str, Any]]) -> dict[str, tuple[Decimal, int, int, list[str | None]]]:
    """The last total of each customer: price, orders, lines and notes."""
    found: dict[str, tuple[Decimal, int, int, list[str | None]]] = {}
    for one in orders:
        price, count, lines, notes = found.get(one["customer"], (Decimal(0), 0, 0, []))
        now = (price + one["price"], count + 1, lines + len(one["lines"]), [*notes, one["note"]])
        found[one["customer"]] = now
    return found


def last(totals: Iterable[Any]) -> dict[str, tuple[Decimal, int, int, list[str | None]]]:
    return {
        one["customer"]: (Decimal(one["price"]), one["orders"], len(one["lines"]), one["notes"])
        for one in totals
    }


class Shop:
    """The app on an embedded log, or on another."""

    def __init__(self, folder: Path, prefix: str, log: object = None) -> None:
        self.folder, self.orders, self.totals = folder, f"{prefix}orders", f"{prefix}totals"
        self.environment = {
            "SHOP_PREFIX": prefix,
            "TAILRACE_LOG": str(log or folder / "log"),
            "TAILRACE_STATE": str(folder / "state"),
        }
        self.tailrace("topics", "apply", "--app", APP)

    def tailrace(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """What a command says, which has to end with this code."""
        done = subprocess.run(
            [sys.executable, "-m", "tailrace", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.environment, **environment},
        )
        assert done.returncode == code, done.stderr[-3_000:]
        return done.stdout + done.stderr

    def run(self, code: int = 0, **environment: str) -> str:
        return self.tailrace("run", APP, "--until-end", code=code, **environment)

    def append(self, encode: Encode, orders: Iterable[dict[str, Any]]) -> None:
        self.append_raw((one["customer"], encode(one)) for one in orders)

    def append_raw(self, records: Iterable[tuple[str, bytes]]) -> None:
        with closing(EmbeddedLog(self.folder / "log")) as log:
            log.append_all([Output(self.orders, key.encode(), value, 0) for key, value in records])

    def read(self, topic: str) -> list[bytes]:
        with closing(EmbeddedLog(self.folder / "log", create=False)) as log:
            return [one.value or b"" for number in range(2) for one in scan(log, topic, number)]

    def dumped(self) -> list[Any]:
        """The totals by the app's own decoder."""
        lines = self.tailrace("log", "dump", self.totals, "--app", APP).splitlines()
        return [json.loads(line)["value"] for line in lines]

    def refused(self) -> int:
        return len(self.read(dead_letters_of("shop")))


@pytest.fixture
def client(apicurio: Apicurio) -> Iterator[SchemaRegistryClient]:
    """Confluent's client."""
    with SchemaRegistryClient({"url": apicurio.url}) as made:
        yield made


@pytest.fixture
def one(tmp_path: Path, prefix: str) -> Shop:
    return Shop(tmp_path, prefix)


@pytest.mark.parametrize("format_", FORMATS)
def test_confluents_records_are_read_and_ours_by_it_and_again_when_the_registry_is_gone(
    one: Shop, client: SchemaRegistryClient, apicurio: Apicurio, format_: str
) -> None:
    one.environment["SHOP_FORMAT"] = format_
    orders = made(60)
    one.append(producer_of(client, format_, one.orders), orders)
    one.run()
    totals = [*map(reader_of(client, format_, one.totals), one.read(one.totals))]
    assert last(totals) == expected(orders)
    assert len(totals) == 60
    one.environment |= GONE
    assert json.loads(one.tailrace("replay", APP, "--compare", "--json"))["differences"] == 0
    snapshots = f"file://{one.folder}/snapshots"
    for order in ("tape", "stages"):
        said = one.tailrace("rebuild", APP, "--to", snapshots, "--order", order, "--json")
        report = json.loads(said.splitlines()[0])
        assert report["events"] == 60
        if order == "tape":  # in stages, no rows are compared with those of the service
            assert report["same_rows"] > 0
    assert last(one.dumped()) == expected(orders)
    shutil.rmtree(one.folder / "schemas")  # which makes a replay independent
    assert "does not answer" in one.tailrace("replay", APP, "--compare", code=1)
    one.environment["TAILRACE_REGISTRY_URL"] = apicurio.url
    one.tailrace("replay", APP, "--compare")


def test_a_producer_that_adds_a_field_is_read_on_once_the_registry_answers(
    one: Shop, client: SchemaRegistryClient, apicurio: Apicurio
) -> None:
    """Until then the task stops, and no record is at fault."""
    apicurio.ask(f"/config/{one.orders}-value", {"compatibility": "FULL"}, "PUT")
    orders, older = made(40), producer_of(client, "avro", one.orders)
    one.append(older, orders[:10])
    one.run()
    newer = producer_of(client, "avro", one.orders, [NEW_FIELD])
    one.append(lambda order: newer({**order, "shipping": "air"}), orders[10:20])
    before = one.read(one.totals)
    assert "does not answer" in one.run(1, **GONE)
    assert one.read(one.totals) == before
    one.append(older, orders[20:])
    one.run()
    totals = map(reader_of(client, "avro", one.totals), one.read(one.totals))
    assert last(totals) == expected(orders)
    assert one.refused() == 0
    assert len(apicurio.ask(f"/subjects/{one.orders}-value/versions")) == 2
    one.tailrace("replay", APP, "--compare", code=0, **GONE)


def test_a_registry_that_refuses_a_schema_keeps_the_service_from_its_first_record(
    one: Shop, client: SchemaRegistryClient, apicurio: Apicurio
) -> None:
    encode = producer_of(client, "avro", one.orders)
    one.append(encode, made(3))
    one.run()
    apicurio.ask(f"/config/{one.totals}-value", {"compatibility": "BACKWARD"}, "PUT")
    before = one.read(one.totals)
    one.append(encode, made(3))
    said = one.run(1, SHOP_TOTALS="incompatible")
    assert f"refuses the schema of the subject '{one.totals}-value'" in said
    assert "409" in said
    assert one.read(one.totals) == before
    assert one.refused() == 0
    one.run()
    assert len(one.read(one.totals)) == 6


def test_without_registering_the_schema_must_be_there(
    one: Shop, client: SchemaRegistryClient, apicurio: Apicurio
) -> None:
    one.append(producer_of(client, "avro", one.orders), made(3))
    said = one.run(1, SHOP_REGISTER="no")
    assert f"does not have the schema of the subject '{one.totals}-value'" in said
    assert apicurio.ask(f"/subjects/{one.totals}-value/versions") == 404
    one.run()
    shutil.rmtree(one.folder / "schemas")
    one.append(producer_of(client, "avro", one.orders), made(3))
    one.run(SHOP_REGISTER="no")
    assert len({value[:5] for value in one.read(one.totals)}) == 1


def test_records_that_are_garbage_are_dead_letters_and_an_unknown_id_is_not(
    one: Shop, client: SchemaRegistryClient, apicurio: Apicurio
) -> None:
    encode = producer_of(client, "avro", one.orders)
    (order,) = made(1)
    good = encode(order)
    schema = apicurio.ask(
        f"/subjects/{one.orders}-json/versions", {"schemaType": "JSON", "schema": json.dumps(JSON)}
    )
    garbage = [
        *(b"", b"{}", b"\1" + good[1:], good[:4], good[:-1]),
        *(good + b"x", b"\0" + schema["id"].to_bytes(4, "big") + b"{}"),
    ]
    one.append_raw(("Ada", value) for value in (*garbage, good))
    one.run(3)
    assert one.refused() == len(garbage)
    assert len(one.read(one.totals)) == 1
    one.append_raw([("Ada", b"\0\0\x7f\0\0" + good[5:])])
    assert "does not give the schema 8323072" in one.run(1)
    assert one.refused() == len(garbage)
    (one.folder / "schemas" / "8323072.json").write_text("null", "utf-8")
    one.run(3)
    assert one.refused() == len(garbage) + 1


def test_on_kafka_producers_and_consumers_of_confluent_are_served(
    kafka_url: str, prefix: str, client: SchemaRegistryClient, tmp_path: Path
) -> None:
    bootstrap, _, before = kafka_url.removeprefix("kafka://").partition("/")
    one = Shop(tmp_path, prefix, kafka_url)
    orders, encode = made(50), producer_of(client, "avro", one.orders)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for order in orders:
        producer.produce(before + one.orders, encode(order), order["customer"])
    assert producer.flush(60) == 0
    one.run()
    read = reader_of(client, "avro", one.totals)
    found: list[Any] = []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": prefix, "auto.offset.reset": "earliest"})
    consumer.subscribe([before + one.totals])
    while len(found) < len(orders):
        message = consumer.poll(60)
        assert message is not None, "no more totals"
        assert message.error() is None
        found.append(read(message.value() or b""))
    consumer.close()
    assert last(found) == expected(orders)
