"""Queries with their arguments as texts: the signature of each ``@tr.query`` method as a type that checks and converts them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, get_type_hints

import msgspec

from tailrace.core.declare.plan import ActorPlan
from tailrace.core.errors import DefinitionError
from tailrace.core.suggestions import did_you_mean
from tailrace.serve.unanswered import BAD_REQUEST, Unanswered

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MANY = (
    msgspec.inspect.ListType,
    msgspec.inspect.SetType,
    msgspec.inspect.FrozenSetType,
    msgspec.inspect.VarTupleType,
)


class Query(NamedTuple):
    """A query of an actor."""

    name: str
    about: str
    """The first line of its docstring."""
    arguments: type[msgspec.Struct]
    """Its parameters as fields."""
    many: frozenset[str]
    """Those that take several values."""
    result: Any
    """The type of its result."""

    def converted(self, given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """The arguments, each of its declared type. Raises Unanswered (400)."""
        known = self.arguments.__struct_fields__
        values: dict[str, Any] = {}
        for name, texts in given.items():
            if name not in known:
                more = f"It takes {', '.join(known) or 'no arguments'}."
                raise self._wrong(f"has no argument {name!r}", did_you_mean(name, known, more))
            if name not in self.many and len(texts) > 1:
                raise self._wrong(f"was given {name!r} {len(texts)} times", "Give it once.")
            values[name] = list(texts) if name in self.many else texts[0]
        required = (one.name for one in msgspec.structs.fields(self.arguments) if one.required)
        if missing := next((name for name in required if name not in values), None):
            raise self._wrong(f"needs the argument {missing!r}", f"Add {missing}=….")
        try:
            converted = msgspec.convert(values, self.arguments, strict=False)
        except msgspec.ValidationError as error:
            raise self._wrong(f"cannot take these arguments: {error}", "Correct them.") from None
        return {name: getattr(converted, name) for name in known}

    def _wrong(self, what: str, hint: str) -> Unanswered:
        return Unanswered(f"the query {self.name!r} {what}", status=BAD_REQUEST, hint=hint)


def queries_of(actor: ActorPlan) -> dict[str, Query]:
    """The queries of an actor, by name.

    Raises DefinitionError: a parameter has a type that texts cannot be converted to, or no name.
    """
    return {name: _query(actor, name, call) for name, call in actor.queries.items()}


def _query(actor: ActorPlan, name: str, call: Any) -> Query:
    where = f"{actor.name}.{name}"
    hints = get_type_hints(call, include_extras=True)
    fields: list[Any] = []
    for one in [*inspect.signature(call).parameters.values()][1:]:
        if one.kind not in _NAMED:
            raise DefinitionError(
                f"the query {where} takes {one}, which cannot be given in a URL",
                hint="Give it parameters with names.",
            )
        kind = hints.get(one.name, str)
        if one.default is inspect.Parameter.empty:
            fields.append((one.name, kind))
        else:
            # msgspec refuses a list or dict as a default. Here it is the method's own.
            own = isinstance(one.default, (list, dict, set))
            default = msgspec.field(default_factory=partial(_itself, one.default)) if own else one.default
            fields.append((one.name, kind, default))
    try:
        arguments = msgspec.defstruct(
            f"{actor.name}_{name}", fields, kw_only=True, forbid_unknown_fields=True
        )
        known = msgspec.inspect.type_info(arguments)
        assert isinstance(known, msgspec.inspect.StructType)
        try:
            msgspec.convert({}, arguments, strict=False)
        except msgspec.ValidationError:
            pass  # an argument is required
    except TypeError as error:
        raise DefinitionError(
            f"the query {where} cannot be asked over HTTP: {error}",
            hint="Declare parameters that JSON has a form for: str, int, float, bool, an enum, a datetime, a list of these.",
        ) from None
    many = frozenset(field.name for field in known.fields if _takes_many(field.type))
    about = (inspect.getdoc(call) or "").partition("\n")[0]
    return Query(name, about, arguments, many, hints.get("return", Any))


def _takes_many(kind: msgspec.inspect.Type) -> bool:
    some = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return any(isinstance(one, _MANY) for one in some)


def _itself(value: Any) -> Any:
    return value
