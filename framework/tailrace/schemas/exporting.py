"""The types of an app's events for other tools, as JSON Schema.

The document depends on the declarations alone: the same app gives the same bytes in every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import DefinitionError
from tailrace.core.values.event_fields import kind_of
from tailrace.core.values.key_paths import members_of

Document = dict[str, Any]


def json_schema(plan: Plan) -> Document:
    """One JSON Schema (2020-12): ``properties`` has the events of each topic by its name, ``$defs`` the types."""
    schemas, types = _schemas(plan)
    events = {
        name: schemas[members[0]] if len(members) == 1 else {"anyOf": [schemas[one] for one in members]}
        for name, members in _members(plan).items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": plan.app,
        "type": "object",
        "properties": events,
        "$defs": types,
    }


def formatted(document: Document) -> bytes:
    """The document as formatted JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _members(plan: Plan) -> dict[str, tuple[Any, ...]]:
    """The classes of each topic's events, by name of topic."""
    return {name: members_of(plan.topics[name].type) for name in sorted(plan.topics)}


def _schemas(plan: Plan) -> tuple[Mapping[Any, Document], Document]:
    """The schema of each class of events, and the definitions that they refer to."""
    classes = list(dict.fromkeys(one for members in _members(plan).values() for one in members))
    models = [one for one in classes if kind_of(one) == "model"]
    others = [one for one in classes if one not in models]
    try:
        found, types = msgspec.json.schema_components(others, ref_template="#/$defs/{name}")
    except (TypeError, KeyError) as error:  # a KeyError names one of two classes of one name in one module
        raise DefinitionError(
            f"the events of {plan.app} have no JSON Schema: {error}",
            hint="Declare their fields with types that msgspec decodes without a hook, each with a name of its own.",
        ) from None
    schemas: dict[Any, Document] = dict(zip(others, found, strict=True))
    for one in models:
        # A model's own definitions are under its name: another model may have others of the same names.
        schema = one.model_json_schema(ref_template=f"#/$defs/{one.__name__}.{{model}}")
        inner = schema.pop("$defs", {})
        named = {one.__name__: schema, **{f"{one.__name__}.{name}": part for name, part in inner.items()}}
        if named.keys() & types.keys():
            raise DefinitionError(
                f"two types of events are called {one.__name__}", hint="Rename one of them."
            )
        types |= named
        schemas[one] = {"$ref": f"#/$defs/{one.__name__}"}
    return schemas, dict(sorted(types.items()))
