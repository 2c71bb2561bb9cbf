"""The types of an app's events for other tools: as JSON Schema, and with topics and keys as AsyncAPI.

Both documents depend on the declarations alone: the same app gives the same bytes in every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import DefinitionError
from tailrace.core.values.event_fields import kind_of
from tailrace.core.values.key_paths import members_of, stored_path
from tailrace.core.values.types import spell

_CONTENT: Final = {"msgpack": "application/vnd.msgpack", "avro": "avro/binary"}
_KAFKA: Final = "0.5.0"
"""Version of AsyncAPI's bindings for Kafka."""
Document = dict[str, Any]


def json_schema(plan: Plan) -> Document:
    """One JSON Schema (2020-12): ``properties`` has the events of each topic by its name, ``$defs`` the types."""
    schemas, types = _schemas(plan, "#/$defs/")
    events = {name: _any_of([schemas[one] for one in members]) for name, members in _members(plan).items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": plan.app,
        "type": "object",
        "properties": events,
        "$defs": types,
    }


def asyncapi(plan: Plan) -> Document:
    """AsyncAPI 3.0: a channel for each topic, an operation for each that the app receives or sends."""
    schemas, types = _schemas(plan, "#/components/schemas/")
    received = {one.name for one in plan.inputs if not one.is_inbox}
    sent = {edge.name for one in plan.operators for edge in one.emits if not edge.is_stream}
    sent |= {one.late_topic.name for one in plan.inputs if one.late_topic is not None}
    channels: Document = {}
    operations: Document = {}
    for name, members in _members(plan).items():
        topic = plan.topics[name]
        messages = {_name(one): _message(topic, one, schemas[one]) for one in members}
        partitions = plan.partitions if name in received else topic.partitions
        binding: Document = {"topic": name, "partitions": partitions, "bindingVersion": _KAFKA}
        if topic.is_table:
            binding["topicConfiguration"] = {"cleanup.policy": ["compact"]}
        channels[name] = {"address": name, "messages": messages, "bindings": {"kafka": binding}}
        for action, names in (("receive", received), ("send", sent)):
            if name in names:
                at = f"#/channels/{name}"
                refs = [{"$ref": f"{at}/messages/{one}"} for one in messages]
                operations[f"{action}.{name}"] = {"action": action, "channel": {"$ref": at}, "messages": refs}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": plan.app, "version": plan.version},
        "channels": channels,
        "operations": operations,
        "components": {"schemas": types},
    }


def formatted(document: Document) -> bytes:
    """The document as formatted JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _members(plan: Plan) -> dict[str, tuple[Any, ...]]:
    """The classes of each topic's events, by name of topic."""
    return {name: members_of(plan.topics[name].type) for name in sorted(plan.topics)}


def _schemas(plan: Plan, at: str) -> tuple[Mapping[Any, Document], Document]:
    """The schema of each class of events, and the definitions that they refer to, at ``at``."""
    classes = list(dict.fromkeys(one for members in _members(plan).values() for one in members))
    models = [one for one in classes if kind_of(one) == "model"]
    others = [one for one in classes if one not in models]
    try:
        found, types = msgspec.json.schema_components(others, ref_template=f"{at}{{name}}")
    except (TypeError, KeyError) as error:  # a KeyError names one of two classes of one name in one module
        raise DefinitionError(
            f"the events of {plan.app} have no JSON Schema: {error}",
            hint="Declare their fields with types that msgspec decodes without a hook, each with a name of its own.",
        ) from None
    schemas: dict[Any, Document] = dict(zip(others, found, strict=True))
    for one in models:
        # A model's own definitions are under its name: another model may have others of the same names.
        schema = one.model_json_schema(ref_template=f"{at}{one.__name__}.{{model}}")
        inner = schema.pop("$defs", {})
        named = {one.__name__: schema, **{f"{one.__name__}.{name}": part for name, part in inner.items()}}
        if named.keys() & types.keys():
            raise DefinitionError(
                f"two types of events are called {one.__name__}", hint="Rename one of them."
            )
        types |= named
        schemas[one] = {"$ref": f"{at}{one.__name__}"}
    return schemas, dict(sorted(types.items()))


def _any_of(schemas: list[Document]) -> Document:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _name(one: Any) -> str:
    """The name of a message: that of its class; for a generic class, with its arguments."""
    return "".join(
        letter if letter.isalnum() or letter in "-_." else "_"
        for letter in spell(one).rpartition("<locals>.")[2]
    )


def _message(topic: Topic[Any, Any], one: Any, schema: Document) -> Document:
    message: Document = {
        "name": _name(one),
        "contentType": _CONTENT.get(topic.settings.format, "application/json"),
        "payload": schema,
    }
    about = (getattr(one, "__doc__", None) or "").strip().partition("\n")[0]
    if about and not about.startswith(f"{_name(one)}("):  # that is what a dataclass writes itself
        message["summary"] = about
    key = topic.settings.key
    if key is not None:
        kind = msgspec.json.schema(topic.key_codec.type)
        fields = "computed from the event" if callable(key) else stored_path(topic.type, key)
        binding = {"key": {**kind, "description": fields}, "bindingVersion": _KAFKA}
        message["bindings"] = {"kafka": binding}
    return message
