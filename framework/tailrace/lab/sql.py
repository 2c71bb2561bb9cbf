"""SQL over what an app has committed: ``tailrace sql``.

The tables that a query names are exported to a temporary folder, and DuckDB runs the query over them. They are the tables of
``export``, in two schemas: ``states."Customer"``, ``topics."orders"``. A name without a schema is looked up in both, states first.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError
from tailrace.core.suggestions import did_you_mean
from tailrace.lab import export
from tailrace.lab.database import add_views, check_case, connected, duckdb, is_one_select
from tailrace.lab.export import Destination, StateOptions
from tailrace.lab.state_tables import TIMERS_TABLE
from tailrace.log.interface import OneCommitLog

_MISSING = re.compile(r'Table with name "?(.+?)"? does not exist')
_SHOW_TABLES = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
_AT_ONCE = 10_000
STATES, TOPICS = "states", "topics"


def tables_in(query: str) -> set[tuple[str, str]]:
    """The tables that a query names, each as its schema, or nothing, and its name.

    Raises OptionError if it is not one SELECT.
    """
    try:
        if not is_one_select(query):
            raise OptionError(
                "the query is not one SELECT", hint="Write a query that begins with SELECT, FROM or WITH."
            )
        (tree,) = duckdb.execute("select json_serialize_sql($1)", [query]).fetchone()
    except duckdb.Error as error:
        raise OptionError(
            f"the query cannot be read: {error}", hint="It is SQL as DuckDB takes it."
        ) from None
    nodes = _nodes(msgspec.json.decode(tree))
    return {(one["schema_name"], one["table_name"]) for one in nodes if one.get("type") == "BASE_TABLE"}


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    """The objects in a syntax tree."""
    parts: Iterable[Any] = cast("Iterable[Any]", node) if isinstance(node, list) else ()
    if isinstance(node, dict):
        tree = cast("dict[str, Any]", node)
        yield tree
        parts = tree.values()
    for part in parts:
        yield from _nodes(part)


@contextmanager
def answered(
    plan: Plan,
    log: OneCommitLog | None,
    query: str,
    options: StateOptions,
    history: OneCommitLog | None = None,
) -> Generator[tuple[list[str], Iterator[tuple[Any, ...]], list[str]]]:
    """The result of a query: the names of the columns, the rows, and notes. ``options`` name the state; only of the log's last one
    there are topics, too. ``history``: topics are read from it, if given, and not from ``log``. ``show tables`` gives
    the names that there are.

    Raises OptionError: the query is wrong, or names what is not there, or names differ by case only. And what the exports raise, and MissingExtraError.
    """
    if _SHOW_TABLES.fullmatch(query):
        tables = [(STATES, one) for one in _state_tables(plan)] + [
            (TOPICS, one) for one in sorted(plan.topics)
        ]
        yield ["schema", "name"], iter(tables), []
        return
    named = tables_in(query)
    with TemporaryDirectory(prefix="tailrace-sql-") as folder:
        notes = _exported(plan, log, history, options, named, Path(folder))
        with connected() as database:
            add_views(database, Path(folder), (STATES, TOPICS))
            database.execute(f"set search_path = '{STATES},{TOPICS}'")
            try:
                found = database.execute(query)
                some: Iterator[list[tuple[Any, ...]]] = iter(lambda: found.fetchmany(_AT_ONCE), [])
                yield [one[0] for one in found.description], chain.from_iterable(some), notes
            except duckdb.Error as error:
                raise _refusal(plan, str(error)) from None


def _refusal(plan: Plan, said: str) -> OptionError:
    """The error for a query that DuckDB refuses."""
    if (missing := _MISSING.search(said)) is None:
        return OptionError(f"the query fails: {said}", hint="Correct it.")
    known = [*(one.name for one in plan.actors), *sorted(plan.topics)]
    hint = did_you_mean(
        missing[1], [*known, *_state_tables(plan)], f"Actors and topics are: {', '.join(known)}."
    )
    return OptionError(f"the query names {missing[1]!r}, which is no table here", hint=hint)


def _exported(
    plan: Plan,
    log: OneCommitLog | None,
    history: OneCommitLog | None,
    options: StateOptions,
    named: set[tuple[str, str]],
    folder: Path,
) -> list[str]:
    """Export the tables that are named, into a folder for each schema. Returns notes."""
    notes = list[str]()
    plain = {name.lower() for schema, name in named if not schema}
    check_case("tables", (name for _, name in named if name.lower() in plain))
    of_states, of_topics = (
        {name for schema, name in named if schema in ("", one)} for one in (STATES, TOPICS)
    )
    actors = [
        one.name for one in plan.actors if any(f"{name}_".startswith(f"{one.name}_") for name in of_states)
    ]
    timers, wanted = TIMERS_TABLE in of_states, sorted(of_topics & plan.topics.keys())
    if wanted and (log is None or options.as_of_ms is not None):
        raise OptionError(
            f"the query names the topic {wanted[0]!r}, and a snapshot, or a time, has states only",
            hint="Leave --snapshot and --as-of out, and compare _time in the query.",
        )
    if actors or timers:
        options = replace(options, actors=() if timers else tuple(actors), timers=timers)
        notes += export.export_state(plan, log, Destination(folder / STATES), options).notes
    if wanted and log is not None:
        report = export.export_topics(plan, history or log, Destination(folder / TOPICS), wanted)
        left_out = f"{report.skipped:,} records cannot be decoded and are left out"
        notes += [*report.notes, *[left_out][: report.skipped]]
    return notes


def _state_tables(plan: Plan) -> list[str]:
    collections = [
        f"{one.name}_{each.name}" for one in plan.actors for each in one.schema.fields if each.kind != "value"
    ]
    return [*(one.name for one in plan.actors), *collections, TIMERS_TABLE]
