"""SQL over what an app has committed: ``tailrace sql``.

The tables that a query names are exported to a temporary folder, and DuckDB runs the query over them. They are the tables of
``export``, in two schemas: ``states."Customer"``, ``topics."orders"``. A name without a schema is looked up in both, states first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError
from tailrace.lab.database import add_views, connected, duckdb, is_one_select
from tailrace.lab.export import Destination, ExportReport, StateOptions
from tailrace.lab.state_tables import TIMERS_TABLE

STATES, TOPICS = "states", "topics"
Exporting = Callable[[Destination, StateOptions], ExportReport]
"""Exports the state of some actors."""
ExportingTopics = Callable[[Destination, Sequence[str]], ExportReport]


def tables_in(query: str) -> set[tuple[str, str]]:
    """The tables that a query names, each as its schema, or nothing, and its name.

    Raises OptionError if it is not one SELECT.
    """
    try:
        is_select = is_one_select(query)
        (tree,) = duckdb.execute("select json_serialize_sql($1)", [query]).fetchone()
    except duckdb.Error as error:
        raise OptionError(
            f"the query cannot be read: {error}", hint="It is SQL as DuckDB takes it."
        ) from None
    if not is_select:
        raise OptionError(
            "the query is not one SELECT", hint="Write a query that begins with SELECT, FROM or WITH."
        )
    return set(_tables(msgspec.json.decode(tree)))


def _tables(node: Any) -> Iterator[tuple[str, str]]:
    """The tables in a syntax tree."""
    parts: Iterable[Any] = ()
    if isinstance(node, dict):
        tree = cast("dict[str, Any]", node)
        parts = tree.values()
        if tree.get("type") == "BASE_TABLE":
            yield tree["schema_name"], tree["table_name"]
    elif isinstance(node, list):
        parts = cast("Iterable[Any]", node)
    for part in parts:
        yield from _tables(part)


@contextmanager
def answered(
    plan: Plan,
    query: str,
    states: Exporting,
    topics: ExportingTopics | None,
    *,
    any_environment: bool = False,
) -> Generator[tuple[Any, list[str]]]:
    """The result of a query, and notes. ``topics`` is None if there are none: of a snapshot, or as of a time.

    Raises OptionError: the query is wrong, or names what is not there. And what the exports raise.
    """
    named, notes = tables_in(query), list[str]()
    actors = sorted(
        {
            actor.name
            for schema, name in named
            for actor in plan.actors
            if schema in ("", STATES) and (name == actor.name or name.startswith(f"{actor.name}_"))
        }
    )
    timers = bool({("", TIMERS_TABLE), (STATES, TIMERS_TABLE)} & named)
    wanted = sorted({name for schema, name in named if schema in ("", TOPICS) and name in plan.topics})
    if wanted and topics is None:
        raise OptionError(
            f"the query names the topic {wanted[0]!r}, and a snapshot, or a time, has states only",
            hint="Leave --snapshot and --as-of out, and compare _time in the query.",
        )
    with TemporaryDirectory(prefix="tailrace-sql-") as folder, connected() as database:
        to = {schema: Destination(Path(folder) / schema) for schema in (STATES, TOPICS)}
        if actors or timers:
            options = StateOptions(() if timers else tuple(actors), timers, any_environment)
            notes += _notes(states(to[STATES], options))
        if wanted and topics is not None:
            notes += _notes(topics(to[TOPICS], wanted))
        for schema, place in to.items():
            add_views(database, schema, place.folder)
        database.execute(f"set search_path = '{STATES},{TOPICS}'")
        try:
            yield database.execute(query), notes
        except duckdb.Error as error:
            known = ", ".join([*(one.name for one in plan.actors), *sorted(plan.topics)])
            raise OptionError(f"the query fails: {error}", hint=f"Actors and topics are: {known}.") from None


def _notes(report: ExportReport) -> list[str]:
    skipped = [f"{report.skipped:,} records cannot be decoded and are left out"] if report.skipped else []
    return report.notes + skipped
