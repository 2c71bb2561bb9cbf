"""The description of the questions that an app answers, as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.serve.answers import LIMIT, MOST, Answer, Questions, fields_of, table_fields
from tailrace.serve.queries import Query
from tailrace.serve.unanswered import BAD_REQUEST, ELSEWHERE, NOT_FOUND, NOT_YET

_REF: Final = "#/components/schemas/{name}"
_REFUSALS: Final = {
    BAD_REQUEST: "The key or an argument is wrong.",
    NOT_FOUND: "There is no such actor or table, instance or value, field or query.",
    ELSEWHERE: "Another process follows the partition of the key.",
    NOT_YET: "The partition is being restored, or cannot be read.",
}

Schemas = dict[str, Any]


def description(questions: Questions) -> dict[str, Any]:
    """The document, for ``/openapi.json``."""
    plan = questions.plan
    components: Schemas = {}
    paths: dict[str, Any] = {}
    (answer,), known = msgspec.json.schema_components([Answer], ref_template=_REF)
    components |= known
    for actor in plan.actors:
        path = f"/actors/{actor.name}/{{key}}"
        about = (actor.cls.__doc__ or "").strip().partition("\n")[0] or f"An instance of {actor.name}."
        paths[path] = _operation(actor.name, about, [_KEY, _LIMIT], answer)
        for name in fields_of(actor):
            paths[f"{path}/{name}"] = _operation(actor.name, f"The field {name}.", [_KEY, _LIMIT], answer)
        for name, query in questions.queries[actor.name].items():
            result = _schema(query.result, components)
            typed = _with(answer, "result", result)
            parameters = [_KEY, *_parameters(query, components)]
            paths[f"{path}/{name}"] = _operation(
                actor.name, query.about or f"The query {name}.", parameters, typed
            )
    for table, topic in questions.tables.items():
        fields = {f"/{name}": (f"The field {name}.", one.type) for name, one in table_fields(topic).items()}
        for name, (about, kind) in {"": (f"A value of {table}.", topic.type), **fields}.items():
            typed = _with(answer, "value", _schema(kind, components))
            paths[f"/tables/{table}/{{key}}{name}"] = _operation(table, about, [_KEY], typed)
    return {
        "openapi": "3.1.0",
        "info": {"title": plan.app, "version": plan.version},
        "paths": paths,
        "components": {"schemas": components},
    }


_KEY: Final[Schemas] = {
    "name": "key",
    "in": "path",
    "required": True,
    "description": "The key, percent-encoded.",
    "schema": {"type": "string"},
}
_LIMIT: Final[Schemas] = {
    "name": "limit",
    "in": "query",
    "description": "Entries of each map or list.",
    "schema": {"type": "integer", "minimum": 1, "maximum": MOST, "default": LIMIT},
}


def _with(answer: Schemas, name: str, schema: Schemas) -> Schemas:
    return {"allOf": [answer, {"type": "object", "properties": {name: schema}}]}


def _operation(of: str, about: str, parameters: list[Schemas], answer: Schemas) -> Schemas:
    responses: Schemas = {
        "200": {"description": "The answer.", "content": {"application/json": {"schema": answer}}}
    }
    responses |= {str(status): {"description": text} for status, text in _REFUSALS.items()}
    return {"get": {"summary": about, "tags": [of], "parameters": parameters, "responses": responses}}


def _parameters(query: Query, components: Schemas) -> list[Schemas]:
    found = _schema(query.arguments, {})
    whole = components.get(query.arguments.__name__, found)
    if "$ref" in found:
        (_,), known = msgspec.json.schema_components([query.arguments], ref_template=_REF)
        whole = known.pop(query.arguments.__name__)
        components.update(known)
    required = whole.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in whole.get("properties", {}).items()
    ]


def _schema(kind: Any, components: Schemas) -> Schemas:
    """The schema of a type; anything for one that JSON Schema cannot describe."""
    try:
        (schema,), known = msgspec.json.schema_components([kind], ref_template=_REF)
    except (TypeError, NameError):
        return {}
    components.update(known)
    return schema
