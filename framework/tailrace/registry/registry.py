"""Schemas of a registry, and where they are kept.

Theory. Equal bytes must be equal events, live, in a replay, in a rebuild and in a test, also if the registry is gone by then. An id
never changes its meaning, so what a registry has answered is kept in a folder, in files that never change: ``7.json`` is the schema
with the id 7, and ``totals-value-DIGEST.json`` has the id of the schema (of this digest) that an app writes to the topic totals. The
registry is asked only for what is not there: for the id of the app's own schema before the service handles its first record
(``prepare``), and for the schema of an id when the first record with it is decoded.

    the registry is down, or denies access       RegistryError: the task stops. No record is at fault
    it does not know an id                       the same: it may know it tomorrow, and a replay would differ
    the file of an id has ``null``               records with it are undecodable: the user says that they are garbage
    it refuses the app's schema                  RegistryError at the start, with the subject and the registry's answer
    bytes that the schema of their id refuses    an undecodable record, as in every topic

Avro is decoded by the schema of its writer alone, and converted as MessagePack is. JSON needs no schema to be decoded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final
from zlib import crc32

import msgspec

from tailrace.core.declare.event_codec import EventCodec, RecordFormat
from tailrace.core.errors import DefinitionError, RegistryError
from tailrace.registry.avro import avro_schema, reader_of, writer_of
from tailrace.registry.client import Client, Schema

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_NO_ID: Final = "the record does not begin with a zero byte and the id of a schema"


class Registry:
    """A schema registry with the API of Confluent's. Its ``avro`` and ``json_schema`` are for ``format=`` of topics.

    - ``url``: its address, or several with commas; by default ``TAILRACE_REGISTRY_URL``. ``mock://`` is for tests: it knows the
      schemas that are declared in the process.
    - ``schemas``: the folder that keeps what this registry has answered; by default ``TAILRACE_REGISTRY_SCHEMAS``, else
      ``data/registry``.
    - ``register``: register the schemas of topics that the app writes; if False, they must be registered already.
    """

    _declared: ClassVar[dict[int, str]] = {}  # by the ids in mock://

    def __init__(self, url: str = "", schemas: str | Path = "", *, register: bool = True) -> None:
        self._url, self._folder, self._register = url, schemas, register
        self.avro = RecordFormat("avro", self._avro)
        self.json_schema = RecordFormat("json-schema", self._json_schema)

    def _json_schema(self, topic: str, type: Any) -> EventCodec:
        events = EventCodec(topic, type, "json")

        def decode(data: bytes) -> Any:
            if data[:1] != b"\0":
                raise msgspec.DecodeError(_NO_ID)
            return events.decode(data[5:])

        (root,), types = msgspec.json.schema_components([type], ref_template="#/definitions/{name}")
        root = types[root["$ref"].rpartition("/")[2]] if "$ref" in root else root
        schema = msgspec.json.encode({"$schema": _DRAFT, **root, "definitions": types}).decode()
        return _WireCodec(self, events, "JSON", schema, decode)

    def _avro(self, topic: str, type: Any) -> EventCodec:
        readers: dict[bytes, Callable[[bytes], Any]] = {}

        def decode(data: bytes) -> Any:
            head = data[:5]
            if head not in readers:
                if len(head) < 5 or head[0]:
                    raise msgspec.DecodeError(_NO_ID)
                id_ = int.from_bytes(head[1:], "big")
                readers[head] = reader_of(id_, self._schema(id_), type)
            return readers[head](data[5:])

        events = EventCodec(topic, type, "msgpack")
        try:
            schema: str | DefinitionError = avro_schema(topic, type)
            events.encode = events._write = writer_of(topic, str(schema))
        except DefinitionError as error:
            schema = error  # a topic that is only read needs none
        return _WireCodec(self, events, "AVRO", schema, decode)

    def _schema(self, id_: int) -> str | None:
        """The schema of an id; None if its file says that records with it are garbage."""
        if id_ in self._declared and self._address == "mock://":
            return self._declared[id_]
        found = self._kept(f"{id_}.json", lambda client: client.schema(id_))
        return None if found is None else found.schema

    def _own_id(self, subject: str, kind: str, schema: str) -> int:
        """The id of a schema that the app writes under a subject."""
        if self._address == "mock://":
            return crc32(schema.encode()) >> 1
        digest, register = hashlib.sha256(f"{kind} {schema}".encode()).hexdigest()[:16], self._register
        own = f"{subject}-{digest}.json"
        found = self._kept(own, lambda client: client.own(subject, kind, schema, register=register))
        if found is None:
            raise RegistryError(f"the file {own} of a schema has no id", hint="Restore or delete it.")
        # The app, or a command, may read what it has written.
        self._kept(f"{found.id}.json", lambda _: Schema(schema, kind))
        return found.id

    @property
    def _address(self) -> str:
        return self._url or os.environ.get("TAILRACE_REGISTRY_URL", "")

    def _kept(self, name: str, ask: Callable[[Client], Schema]) -> Schema | None:
        """What the file has; else the registry's answer, for which the file is written."""
        path = Path(self._folder or os.environ.get("TAILRACE_REGISTRY_SCHEMAS") or "data/registry") / name
        try:
            if path.exists():
                return msgspec.json.decode(path.read_bytes(), type=Schema | None)
            found = ask(Client(self._address))
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{name}.{os.getpid()}")
            part.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
            part.replace(path)
            return found
        except (OSError, msgspec.MsgspecError) as error:
            what = f"the schema in {path} cannot be read or written, and a replay needs it: {error}"
            hint = "Restore or delete the file, or set TAILRACE_REGISTRY_SCHEMAS to a folder for all schemas."
            raise RegistryError(what, hint=hint) from None


class _WireCodec(EventCodec):
    """``events`` makes what follows the id; ``decode`` takes a whole record."""

    __slots__ = ("_head", "_kind", "_registry", "_schema")

    def __init__(
        self,
        registry: Registry,
        events: EventCodec,
        kind: str,
        schema: str | DefinitionError,
        decode: Callable[[bytes], Any],
    ) -> None:
        super().__init__(events.topic, events.type, "json" if events._json else "msgpack")
        self._registry, self._kind, self._schema, self._head = registry, kind, schema, b""
        self.decode = decode
        self.encode, self._write = self._behind_the_id(events.encode), self._behind_the_id(events._write)
        if isinstance(schema, str):
            registry._declared[crc32(schema.encode()) >> 1] = schema

    def check_emitted(self) -> None:
        super().check_emitted()
        if isinstance(self._schema, DefinitionError):
            raise self._schema

    def prepare(self) -> None:
        if isinstance(self._schema, DefinitionError):
            raise self._schema
        id_ = self._registry._own_id(f"{self.topic}-value", self._kind, self._schema)
        self._head = b"\0" + id_.to_bytes(4, "big")

    def _behind_the_id(self, write: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        def behind_the_id(event: Any) -> bytes:
            if not self._head:
                self.prepare()
            return self._head + write(event)

        return behind_the_id
