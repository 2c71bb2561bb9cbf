"""Applies a changed declaration to state that is already stored, when a task starts.

The rules for types are in ``type_evolution``. State no longer declared is kept until explicitly dropped:

    an actor             its rows stay as they are
    a map or a list      its entries stay, until their key is cleared
    a plain field        its value is carried along when the row is written again (see ``value_rows``)
    a timer's handler    pending timers of its family stop the start, unless failing timers go to dead letters

An *orphan* is named as it is dropped: ``Aircraft``, ``Aircraft.notes``, ``Aircraft.timers:overdue``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import decode_schemas, encode_schemas
from tailrace.core.engine.dropping import Dropping, PendingTimers, pending_timers
from tailrace.core.engine.instance_extras import EarlierDeclaration
from tailrace.core.errors import IncompatibleStateError, UsageError
from tailrace.core.storage import StateReader
from tailrace.core.values.type_evolution import NO_TTL, Change, ChangeKind, evolve_fields, evolve_key
from tailrace.core.values.type_schemas import ActorSchema, FieldSchema

_A_FUNCTION: Final = "a function"
_OTHER_KEY: Final = (
    "Keep the key. If only the attribute was renamed, give it its old name in the events: "
    "msgspec.field(name=...). For another key give the actor another name, @app.actor(name=...): it begins "
    "without state."
)

_OTHER_MEANING: Final = (
    "What is stored was computed for the former one. Give the new one another name, so that it begins without state (its "
    "results begin with what is read from then on; a rebuild fills it from the history), or keep the former one."
)


def evolve(stored: ActorSchema, declared: ActorSchema) -> tuple[ActorSchema, list[Change]]:
    """The schema to store for the actor from now on, and how the declared schema differs from the stored.

    The schema is meaningless if there is an incompatible change. Its families of timers are the stored ones.
    """
    changes: list[Change] = []
    if stored.migrated != declared.migrated:
        changes.append(_mark_change(stored.migrated, declared.migrated))
    key = evolve_key("key", stored.key, declared.key, changes)
    fields, past = evolve_fields("", (stored.fields, stored.past), declared.fields, changes)
    mixed = stored.mixed or any(change.kind not in ("ttl", "default") for change in changes)
    if stored.key == declared.key:
        _compare_inputs(stored, declared, changes)
    for part, now in declared.meaning.items():
        if (before := stored.meaning.get(part, now)) != now:
            changes.append(Change("incompatible", part or "what it does", before, now, _OTHER_MEANING))
    payloads, _ = evolve_fields("", (stored.payloads, ()), declared.payloads, changes)
    inputs, meaning = stored.inputs | declared.inputs, stored.meaning | declared.meaning
    after = ActorSchema(key, fields, past, stored.timers, mixed, inputs, meaning, payloads, stored.migrated)
    return after, changes


def _mark_change(stored: str, declared: str) -> Change:
    hint = (
        "Stop the app, run `tailrace snapshot migrate`, and start from its snapshot with --from-snapshot and --replace-state."
        if declared
        else "Keep the last migration in the class; or run the code that has it, as this code is older than the state."
    )
    before, now = (f"from version {one!r}" if one else "none" for one in (stored, declared))
    return Change("incompatible", "migrations", before, now, hint)


def _compare_inputs(stored: ActorSchema, declared: ActorSchema, changes: list[Change]) -> None:
    """Find topics whose keys have changed. Of a function that makes keys, only its existence is known."""
    for topic, now in declared.inputs.items():
        before = stored.inputs.get(topic, now)
        if before == now:
            continue
        kind: ChangeKind = "incompatible" if before and now else "key"
        changes.append(Change(kind, f"key of {topic}", before or _A_FUNCTION, now or _A_FUNCTION, _OTHER_KEY))


def evolved(actor: str, stored: ActorSchema, declared: ActorSchema) -> tuple[ActorSchema, list[str]]:
    """``evolve``, with notices for an operator. Raises IncompatibleStateError for incompatible changes."""
    schema, changes = evolve(stored, declared)
    wrong = [change for change in changes if change.kind == "incompatible"]
    if wrong:
        first = wrong[0]
        more = f"; nor can {', '.join(change.field for change in wrong[1:])}" if wrong[1:] else ""
        raise IncompatibleStateError(
            f"the stored state of {actor} cannot be read with its current declaration{more}",
            actor=actor,
            field=first.field,
            stored=first.stored or "nothing",
            declared=first.declared,
            hint=first.hint,
        )
    describe = {"ttl": _notice_of_ttl, "default": _notice_of_default, "key": _notice_of_key}
    return schema, [say(actor, change) for change in changes if (say := describe.get(change.kind))]


def _notice_of_ttl(actor: str, change: Change) -> str:
    """The notice about stored values whose TTL has changed."""
    then = "values written before keep their expiry until they are written again"
    if change.stored == NO_TTL:
        then = "values written before do not expire until they are written again"
    return f"{actor}.{change.field} has {change.declared} now, it had {change.stored}: {then}."


def _notice_of_default(actor: str, change: Change) -> str:
    """The notice about stored values whose default has changed."""
    place = f"{actor}.{change.field}"
    kept = (
        f"{place} has the default {change.declared} now, it had {change.stored}: stored values do not change"
    )
    if "." in change.field or "[" in change.field:
        return f"{kept}."
    return f"{kept}, and a key without stored values, new or back to its defaults, reads {change.declared}."


def _notice_of_key(actor: str, change: Change) -> str:
    return (
        f"the {change.field} for {actor} is {change.declared} now, it was {change.stored}: if the keys "
        f"differ, the stored state stays under the old ones. {change.hint}"
    )


# --- undeclared state


def _undeclared(schema: ActorSchema) -> list[FieldSchema]:
    """The fields that are no longer declared. Of several with one name, the last, which is the widest."""
    declared = {one.name for one in schema.fields}
    return [*{one.name: one for one in schema.past if one.name not in declared}.values()]


def _notice_of_field(actor: str, field: FieldSchema) -> str:
    """The notice that a plain field is kept, and what to do about it."""
    stored = "may be stored in some rows" if field.absent else "is stored"
    return (
        f"{actor}.{field.name} ({field}) {stored} and no longer declared; its values are kept. If the field "
        f'was renamed, give it its old name: tr.field(name="{field.name}"). To delete the values: '
        f"--drop-state {actor}.{field.name}."
    )


@dataclass(slots=True)
class StoredState:
    """The stored state of a task, compared with the current declarations.

    - ``state``: the state without dropped rows.
    - ``rows`` and ``index``: rows to write with the next commit, before that commit's own changes.
    - ``orphans``: the names of undeclared state, including the state that is now dropped.
    - ``notices``: for an operator, about orphans and changes that are easily overlooked or misunderstood.
    - ``past``: the earlier declarations, by actor.
    - ``is_upgrade``: the stored schema changes. This is committed even if no event comes, since the state
      that the next version finds must not depend on whether a task was quiet.
    """

    state: StateReader
    rows: dict[bytes, bytes | None]
    index: dict[bytes, bytes | None]
    orphans: tuple[str, ...]
    notices: tuple[str, ...]
    past: Mapping[str, EarlierDeclaration]
    is_upgrade: bool = False

    def written(self) -> None:
        """The rows are in the store now."""
        self.rows, self.index, self.is_upgrade = {}, {}, False
        if isinstance(self.state, Dropping):
            self.state.written()


def stored_state(plan: Plan, state: StateReader, drop: Collection[str] = ()) -> StoredState:
    """Compare the stored state with the declarations, and drop the state named in ``drop``.

    Raises:
        IncompatibleStateError: The state cannot be read as declared, or there are pending timers without a
        handler.
        FormatError, CorruptStateError: See ``decode_schemas``.
        UsageError: ``drop`` names state that is declared.
    """
    row = state.get(rows.SCHEMA_ROW)
    before = {} if row is None else decode_schemas(row)
    after, changed = _merged(plan, before)
    pending = _unhandled(plan, before, after, state)
    orphans = sorted([*_orphans(plan, before, after), *pending])
    dropped = _checked(plan, after, orphans, drop)
    left = [one for name, one in pending.items() if name not in dropped]
    if left and plan.on_error != "dead-letter-all":
        raise _unhandled_error(left)
    for actor in plan.actors:
        timers = {*actor.schema.timers, *(one.family for one in left if one.actor == actor.name)}
        after[actor.name] = msgspec.structs.replace(after[actor.name], timers=tuple(sorted(timers)))
    dropping = None
    if dropped:
        dropping = Dropping(plan, state, dropped)
        after = _without(after, dropped)
    fields = [
        (name, field)
        for name in sorted(one.name for one in plan.actors)
        for field in _undeclared(after[name])
        if field.kind == "value"
    ]
    encoded = encode_schemas(after)
    written: dict[bytes, bytes | None] = {} if encoded == row else {rows.SCHEMA_ROW: encoded}
    return StoredState(
        state if dropping is None else dropping,
        written if dropping is None else written | dropping.rows,
        {} if dropping is None else dropping.index,
        tuple(orphans),
        (*changed, *(_notice_of_field(name, field) for name, field in fields), *map(str, left)),
        {
            one.name: earlier_declaration(after[one.name], one.schema)
            for one in plan.actors
            if one.name in before
        },
        is_upgrade=row is not None and bool(written),
    )


def _merged(plan: Plan, before: Mapping[str, ActorSchema]) -> tuple[dict[str, ActorSchema], list[str]]:
    """The schemas to store, and the notices about changes for an operator."""
    after, notices = dict(before), list[str]()
    for actor in plan.actors:
        there = before.get(actor.name)
        if there is None:
            after[actor.name] = actor.schema
        else:
            after[actor.name], more = evolved(actor.name, there, actor.schema)
            notices += more
    return after, notices


def _orphans(plan: Plan, before: Mapping[str, ActorSchema], after: Mapping[str, ActorSchema]) -> list[str]:
    declared = {actor.name for actor in plan.actors}
    return [name for name in before if name not in declared] + [
        f"{name}.{field.name}" for name in declared for field in _undeclared(after[name])
    ]


def _unhandled(
    plan: Plan, before: Mapping[str, ActorSchema], after: Mapping[str, ActorSchema], state: StateReader
) -> dict[str, PendingTimers]:
    """The pending timers without a handler, by the names under which they can be dropped.

    The index is read only if a handler was removed. A family without pending timers leaves the schema.
    """
    wanted: dict[str, set[str]] = {}
    for actor in plan.actors:
        gone = {*after[actor.name].timers} - {*actor.schema.timers}
        if actor.name in before and gone:
            wanted[actor.name] = gone
    return pending_timers(plan, state, wanted) if wanted else {}


def _unhandled_error(left: list[PendingTimers]) -> IncompatibleStateError:
    first = left[0]
    more = f"; the same applies to {', '.join(one.name for one in left[1:])}" if left[1:] else ""
    return IncompatibleStateError(f"{first.what}{more}", actor=first.actor, hint=first.hint)


def _checked(
    plan: Plan, after: Mapping[str, ActorSchema], orphans: list[str], drop: Collection[str]
) -> set[str]:
    """The names in ``drop`` that exist."""
    declared = {actor.name: actor.schema for actor in plan.actors}
    for name in drop:
        owner, _, part = name.partition(".")
        if owner not in declared:
            continue
        known = {*(one.name for one in after[owner].fields), *declared[owner].timers}
        if not part or part in known:
            raise UsageError(
                f"the state of {name} is to be dropped, but {name} is declared",
                hint=f"What can be dropped: {', '.join(orphans) or 'nothing'}.",
            )
    return {name for name in drop if name in orphans}


def _without(schemas: dict[str, ActorSchema], dropped: Collection[str]) -> dict[str, ActorSchema]:
    return {
        name: msgspec.structs.replace(
            schema, past=tuple(one for one in schema.past if f"{name}.{one.name}" not in dropped)
        )
        for name, schema in schemas.items()
        if name not in dropped
    }


def earlier_declaration(schema: ActorSchema, declared: ActorSchema) -> EarlierDeclaration:
    """What is stored by this schema, and not declared."""
    undeclared = _undeclared(schema)
    kinds = {"map": b"m", "list": b"l"}
    return EarlierDeclaration(
        frozenset(one.name for one in undeclared if one.kind == "value"),
        tuple((kinds[one.kind], one.name) for one in undeclared if one.kind in kinds),
        schema.mixed or schema != declared,
    )


def past_of(plan: Plan, state: StateReader) -> Mapping[str, EarlierDeclaration]:
    """The ``past`` of ``stored_state``, for a caller that only reads the state.

    Raises IncompatibleStateError also if the version that writes the state does not declare a field of the plan any more.
    """
    row = state.get(rows.SCHEMA_ROW)
    before = {} if row is None else decode_schemas(row)
    after, _ = _merged(plan, before)
    for actor in plan.actors:
        for change in evolve(before.get(actor.name, actor.schema), actor.schema)[1]:
            if change.kind == "returned":
                raise IncompatibleStateError(
                    f"the version of the app that writes the state has no field {change.field!r}, so its values are old",
                    actor=actor.name,
                    field=change.field,
                    hint="Read the state with that version of the code.",
                )
    return {
        one.name: earlier_declaration(after[one.name], one.schema)
        for one in plan.actors
        if one.name in before
    }
