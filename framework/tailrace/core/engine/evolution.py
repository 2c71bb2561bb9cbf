"""Applies a changed declaration to state that is already stored, when a task starts.

The rules for types are in ``type_evolution``. State that is no longer declared is kept until it is explicitly dropped:

    an actor             its rows stay as they are
    a map or a list      its entries stay, until their key is cleared
    a plain field        its value is carried along when the row is written again (see ``value_rows``)
    a timer's handler    pending timers of its family stop the start, unless failing timers go to the dead letters

An *orphan* is named as it is dropped: ``Aircraft``, ``Aircraft.notes``, ``Aircraft.timers:overdue``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tailrace.core import rows
from tailrace.core.declare.schema import decode_schemas, encode_schemas
from tailrace.core.engine.dropping import Dropping, PendingTimers, pending_timers
from tailrace.core.engine.instance_extras import EarlierDeclaration
from tailrace.core.errors import IncompatibleStateError, UsageError
from tailrace.core.values.old_values import reader_of, reader_of_fields
from tailrace.core.values.type_evolution import (
    ABSENT,
    NO_TTL,
    Change,
    ChangeKind,
    evolve_fields,
    evolve_key,
)
from tailrace.core.values.type_schemas import ActorSchema

if TYPE_CHECKING:
    from tailrace.core.declare.plan import Plan
    from tailrace.core.storage import StateReader
    from tailrace.core.values.type_schemas import FieldSchema


_A_FUNCTION: Final = "a function"
_OTHER_KEY: Final = (
    "Keep the key. If only the attribute was renamed, give it its old name in the events: "
    "msgspec.field(name=...). For "
    "another key give the actor another name, @app.actor(name=...): it begins without state."
)


def evolve(stored: ActorSchema, declared: ActorSchema) -> tuple[ActorSchema, list[Change]]:
    """What to store as the actor's schema from now on, and how the declaration differs from what is stored.

    The schema means nothing if there is an incompatible change. Its families of timers are those that were stored.
    """
    changes: list[Change] = []
    key = evolve_key("key", stored.key, declared.key, changes)
    fields, past = evolve_fields("", (stored.fields, stored.past), declared.fields, changes)
    mixed = stored.mixed or any(change.kind not in ("ttl", "default") for change in changes)
    if stored.key == declared.key:
        _compare_inputs(stored, declared, changes)
    return ActorSchema(key, fields, past, stored.timers, mixed, stored.inputs | declared.inputs), changes


def _compare_inputs(stored: ActorSchema, declared: ActorSchema, changes: list[Change]) -> None:
    """Find topics whose events go to other keys than what is stored. Of a function, only that it is one is known."""
    for topic, now in declared.inputs.items():
        before = stored.inputs.get(topic, now)
        if before == now:
            continue
        kind: ChangeKind = "incompatible" if before and now else "key"
        changes.append(Change(kind, f"key of {topic}", before or _A_FUNCTION, now or _A_FUNCTION, _OTHER_KEY))


def compatibility(stored: ActorSchema, declared: ActorSchema) -> list[Change]:
    """How a declaration differs from what is stored; ``kind`` is ``"incompatible"`` where it cannot be read."""
    return evolve(stored, declared)[1]


def evolved(actor: str, stored: ActorSchema, declared: ActorSchema) -> tuple[ActorSchema, list[str]]:
    """What to store as the actor's schema from now on, and what to tell an operator about it.

    IncompatibleStateError, with a hint, if it cannot be read.
    """
    schema, changes = evolve(stored, declared)
    wrong = [change for change in changes if change.kind == "incompatible"]
    if wrong:
        first = wrong[0]
        more = f"; nor can {', '.join(change.field for change in wrong[1:])}" if wrong[1:] else ""
        raise IncompatibleStateError(
            f"what is stored of {actor} cannot be read as it is now declared{more}",
            actor=actor,
            field=first.field,
            stored=first.stored or "nothing",
            declared=first.declared,
            hint=_or_renamed(first, schema),
        )
    said = {"ttl": _said_of_ttl, "default": _said_of_default, "key": _said_of_key}
    return schema, [say(actor, change) for change in changes if (say := said.get(change.kind))]


def _said_of_ttl(actor: str, change: Change) -> str:
    """What becomes of what is stored where a TTL has changed."""
    if change.declared == NO_TTL:
        then = "nothing of it expires any more, what was written before included"
    elif change.stored == NO_TTL or change.stored.split()[-2] != change.declared.split()[-2]:
        then = "what was written before does not expire until it is written again"
    else:
        then = "what was written before expires as it was to, until it is written again"
    return f"{actor}.{change.field} has {change.declared} now, it had {change.stored}: {then}."


def _said_of_default(actor: str, change: Change) -> str:
    """What becomes of what is stored where a default has changed."""
    place = f"{actor}.{change.field}"
    kept = f"{place} has the default {change.declared} now, it had {change.stored}: what is stored keeps its value"
    if "." in change.field or "[" in change.field:
        return f"{kept}."
    return (
        f"{kept}, and a key of which nothing is stored, new or back to its defaults, reads {change.declared}."
    )


def _said_of_key(actor: str, change: Change) -> str:
    return (
        f"the {change.field} for {actor} is {change.declared} now, it was {change.stored}: if it gives other "
        "keys, what is "
        f"stored stays under the old ones. {change.hint}"
    )


def _or_renamed(change: Change, schema: ActorSchema) -> str:
    """The hint for a change; of a new field without default, the fields that it may be another name of."""
    new = next((one for one in schema.fields if one.name == change.field), None)
    if new is None or change.stored != ABSENT:
        return change.hint
    old = [one.name for one in _undeclared(schema) if one.kind == new.kind and one.type == new.type]
    if not old:
        return change.hint
    said = " or ".join(f'name="{name}"' for name in old)
    return f"{change.hint} If it is a renamed field, add its old name to it: tr.field({said})."


# --- undeclared state


def _undeclared(schema: ActorSchema) -> list[FieldSchema]:
    """The fields that nothing declares any more; of several of a name the last one, which is the widest."""
    declared = {one.name for one in schema.fields}
    return [*{one.name: one for one in schema.past if one.name not in declared}.values()]


def _said_of_field(actor: str, field: FieldSchema, schema: ActorSchema, before: ActorSchema | None) -> str:
    """That a plain field is kept, and what to do about it. ``before`` is what was stored up to this start.

    A field that had been added itself may be the wrong name of one that is declared again: then only a field that is
    new at this start is taken for its new name.
    """
    known = set[str]() if before is None else {one.name for one in (*before.fields, *before.past)}
    renamed = [
        f'{new.name}: {new} = tr.field({"" if new.required else "default=..., "}name="{field.name}")'
        for new in schema.fields
        if new.kind == "value" and new.absent and new.type == field.type
        if not (field.absent and new.name in known)
    ]
    stored = "may be stored in some rows" if field.absent else "is stored"
    hint = f'Renamed? Add name="{field.name}" to the field: {" or ".join(renamed)}. ' if renamed else ""
    return (
        f"{actor}.{field.name} ({field}) {stored} and no longer declared; its values are kept. "
        f"{hint}To delete them: --drop-state {actor}.{field.name}."
    )


@dataclass(slots=True)
class StoredState:
    """What is stored for a task, in the light of what is declared now.

    ``state`` shows it without what is dropped; ``rows`` and ``index`` are to be written with the next commit, before
    what that commit has changed. ``orphans`` are the names of what is stored for nobody, those being dropped included for
    the last time; ``notices`` tell an operator of those among them that are easily overlooked, and of changes that apply
    to what is stored in a way that is easily mistaken. ``past`` is by actor. ``is_upgrade``: the stored schema changes. That
    is committed even if no event comes: what the next version finds must not depend on whether a task was quiet.
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
    """See what is stored, and drop what is to be dropped.

    Raises:
        IncompatibleStateError: It cannot be read as declared, or timers are pending that nothing handles.
        NewerFormatError, CorruptStateError: See ``decode_schemas``.
        UsageError: Something is to be dropped that is declared.
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
        timers = {*(actor.schema.timers or ()), *(one.family for one in left if one.actor == actor.name)}
        after[actor.name] = msgspec.structs.replace(after[actor.name], timers=tuple(sorted(timers)))
    dropping = None
    if dropped:
        readers = {name: reader_of_fields(one.fields) for name, one in after.items()}
        dropping = Dropping(plan, state, dropped, readers)
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
        (
            *changed,
            *(_said_of_field(name, field, after[name], before.get(name)) for name, field in fields),
            *map(str, left),
        ),
        {one.name: _past(after[one.name], one.schema) for one in plan.actors if one.name in before},
        is_upgrade=row is not None and bool(written),
    )


def _merged(plan: Plan, before: Mapping[str, ActorSchema]) -> tuple[dict[str, ActorSchema], list[str]]:
    """The schemas to store, and what to tell an operator about what has changed."""
    after, said = dict(before), list[str]()
    for actor in plan.actors:
        there = before.get(actor.name)
        if there is None:
            after[actor.name] = actor.schema
        else:
            after[actor.name], more = evolved(actor.name, there, actor.schema)
            said += more
    return after, said


def _orphans(plan: Plan, before: Mapping[str, ActorSchema], after: Mapping[str, ActorSchema]) -> list[str]:
    declared = {actor.name for actor in plan.actors}
    return [name for name in before if name not in declared] + [
        f"{name}.{field.name}" for name in declared for field in _undeclared(after[name])
    ]


def _unhandled(
    plan: Plan, before: Mapping[str, ActorSchema], after: Mapping[str, ActorSchema], state: StateReader
) -> dict[str, PendingTimers]:
    """The pending timers that no handler takes, by the names they are dropped under.

    The schema names the families that timers may be of, so that nothing is looked for unless a handler has gone (or an
    earlier version has written the state). Then the index is read once: where none is found, the family is forgotten.
    """
    wanted: dict[str, set[str] | None] = {}
    for actor in plan.actors:
        known = after[actor.name].timers
        if actor.name not in before:
            continue
        if known is None:
            wanted[actor.name] = None
        elif gone := {*known} - {*(actor.schema.timers or ())}:
            wanted[actor.name] = gone
    return pending_timers(plan, state, wanted) if wanted else {}


def _unhandled_error(left: list[PendingTimers]) -> IncompatibleStateError:
    first = left[0]
    more = f"; so it is with {', '.join(one.name for one in left[1:])}" if left[1:] else ""
    return IncompatibleStateError(f"{first.what}{more}", actor=first.actor, hint=first.hint)


def _checked(
    plan: Plan, after: Mapping[str, ActorSchema], orphans: list[str], drop: Collection[str]
) -> set[str]:
    """What there is of what is to be dropped."""
    declared = {actor.name: actor.schema for actor in plan.actors}
    for name in drop:
        owner, _, part = name.partition(".")
        if owner not in declared:
            continue
        known = {*(one.name for one in after[owner].fields), *(declared[owner].timers or ())}
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


def _past(schema: ActorSchema, declared: ActorSchema) -> EarlierDeclaration:
    undeclared = _undeclared(schema)
    kinds = {"map": b"m", "list": b"l"}
    return EarlierDeclaration(
        frozenset(one.name for one in undeclared if one.kind == "value"),
        tuple((kinds[one.kind], one.name) for one in undeclared if one.kind in kinds),
        schema.mixed or schema != declared,
        {one.name: one.ttl_version for one in schema.fields if one.ttl_version},
        reader_of_fields(schema.fields),
        {
            (kinds[one.kind], one.name): reader
            for one in schema.fields
            if one.kind in kinds and (reader := reader_of(one.type))
        },
    )


def past_of(plan: Plan, state: StateReader) -> Mapping[str, EarlierDeclaration]:
    """What ``stored_state`` finds of the past, for a caller that only reads the state."""
    row = state.get(rows.SCHEMA_ROW)
    before = {} if row is None else decode_schemas(row)
    after, _ = _merged(plan, before)
    return {one.name: _past(after[one.name], one.schema) for one in plan.actors if one.name in before}
