"""What a changed declaration means for the state that is already stored; run when a task starts.

The rules for types are in ``type_evolution``. An actor that is declared no more keeps its rows until it is told to be
dropped, and so do its maps and lists; its plain fields go when their row is next written.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tailrace.core import rows
from tailrace.core.declare.schema import ActorSchema, decode_schemas, encode_schemas
from tailrace.core.errors import IncompatibleStateError, UsageError
from tailrace.core.values.type_evolution import Change, evolve_fields, evolve_key

if TYPE_CHECKING:
    from tailrace.core.declare.plan import Plan
    from tailrace.core.storage import StateReader


def evolve(stored: ActorSchema, declared: ActorSchema) -> tuple[ActorSchema, list[Change]]:
    """What to store as the actor's schema from now on, and how the declaration differs from what is stored.

    The schema means nothing if there is an incompatible change.
    """
    changes: list[Change] = []
    key = evolve_key("key", stored.key, declared.key, changes)
    fields, past = evolve_fields("", (stored.fields, stored.past), declared.fields, changes)
    return ActorSchema(key, fields, past), changes


def compatibility(stored: ActorSchema, declared: ActorSchema) -> list[Change]:
    """How a declaration differs from what is stored; ``kind`` is ``"incompatible"`` where it cannot be read."""
    return evolve(stored, declared)[1]


def evolved(actor: str, stored: ActorSchema, declared: ActorSchema) -> ActorSchema:
    """What to store as the actor's schema from now on. IncompatibleStateError, with the mend, if it cannot be read."""
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
            mend=first.mend,
        )
    return schema


def schema_rows(
    plan: Plan, stored: bytes | None, dropped: Collection[str] = ()
) -> tuple[dict[bytes, bytes | None], tuple[str, ...]]:
    """The rows to write with the next commit so that the stored schema is right, and what is stored for nobody.

    The latter are the names of actors and of maps and lists (``Aircraft.notes``) that are declared no more and whose
    rows are kept, those being ``dropped`` included for the last time. Raises IncompatibleStateError, NewerFormatError
    or CorruptStateError, and UsageError if one is to be dropped that is still declared.
    """
    before = {} if stored is None else decode_schemas(stored)
    after = dict(before)
    for actor in plan.actors:
        there = before.get(actor.name)
        after[actor.name] = actor.schema if there is None else evolved(actor.name, there, actor.schema)
    declared = {actor.name for actor in plan.actors}
    orphans = [name for name in before if name not in declared]
    orphans += [
        f"{name}.{field.name}"
        for name in declared
        for field in after[name].past
        if field.kind != "value" and field.name not in {one.name for one in after[name].fields}
    ]
    for name in dropped:
        owner, _, field = name.partition(".")
        if owner in declared and (not field or field in {one.name for one in after[owner].fields}):
            raise UsageError(
                f"the state of {name} is to be dropped, but {name} is declared",
                mend=f"What can be dropped: {', '.join(sorted(orphans)) or 'nothing'}.",
            )
        if name not in orphans:
            continue
        if not field:
            del after[owner]
        else:
            schema = after[owner]
            after[owner] = ActorSchema(
                schema.key,
                schema.fields,
                tuple(one for one in schema.past if one.name != field or one.kind == "value"),
            )
    row = encode_schemas(after)
    return ({} if row == stored else {rows.SCHEMA_ROW: row}), tuple(sorted(orphans))


def orphan_rows(
    state: StateReader, orphan: str
) -> tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]]:
    """The rows that take an orphan out of the changelog and the store, and those of the index that go with them.

    They are as many as it has rows, and are held in memory together.
    """
    actor, _, field = orphan.partition(".")
    prefix = rows.actor_prefix(actor)
    kinds = (b"m" + field.encode() + b"\0", b"l" + field.encode() + b"\0")
    gone: dict[bytes, bytes | None] = {}
    index: dict[bytes, bytes | None] = {}
    for row, value in state.scan(prefix, rows.prefix_end(prefix)):
        if not field or rows.read_state_row(row).rest.startswith(kinds):
            gone[row] = None
            index |= rows.derived_index_rows(row, value, None)
    return gone, index
