"""SQL over what an app has committed: ``tailrace sql``.

The tables that a query names are exported to a temporary folder, and DuckDB runs the query over them. They are the tables of
``export``, in two schemas: ``states."Customer"``, ``topics."orders"``. A name without a schema is looked up in both, states first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError
from tailrace.core.suggestions import did_you_mean
from tailrace.lab import export
from tailrace.lab.database import add_views, check_case, connected, duckdb, is_one_select
from tailrace.lab.export import Destination, Origin, StateOptions
from tailrace.lab.state_tables import TIMERS_TABLE
from tailrace.log.interface import OneCommitLog

_MISSING = re.compile(r'Table with name "?(.+?)"? does not exist')
_SHOW_TABLES = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
_AT_ONCE = 10_000
STATES, TOPICS = "states", "topics"
_ALL = 'The query "show tables" names all.'
_STATES_ONLY = f"With --snapshot and --as-of there are states only. {_ALL}"


@contextmanager
def answered(
    plan: Plan, origin: Origin, topics: OneCommitLog | None, query: str
) -> Generator[tuple[list[str], Iterator[tuple[Any, ...]], list[str]]]:
    """The result of a query: the names of the columns, the rows, and notes. ``show tables`` gives the names that there are.
    ``topics``: the log that topics are read from; None: there are states only.

    Raises OptionError: the query is wrong, or names what is not there, or names differ by case only. And what the exports raise, and MissingExtraError.
    """
    tables = [(STATES, one) for one in _state_tables(plan)]
    tables += [(TOPICS, one) for one in sorted(plan.topics)] if topics is not None else []
    if _SHOW_TABLES.fullmatch(query):
        yield ["schema", "name"], iter(tables), []
        return
    with TemporaryDirectory(prefix="tailrace-sql-") as folder, connected() as database:
        try:
            notes = _exported(plan, origin, topics, _named(database, query), Path(folder))
            add_views(database, Path(folder), (STATES, TOPICS))
            database.execute(f"set search_path = '{STATES},{TOPICS}'")
            found = database.execute(query)
            some: Iterator[list[tuple[Any, ...]]] = iter(lambda: found.fetchmany(_AT_ONCE), [])
            yield [one[0] for one in found.description], chain.from_iterable(some), notes
        except duckdb.Error as error:
            if (missing := _MISSING.search(str(error))) is None:
                raise OptionError(f"the query fails: {error}", hint="Correct it.") from None
            raise OptionError(
                f"the query names {missing[1]!r}, which is no table here",
                hint=did_you_mean(
                    missing[1], [name for _, name in tables], _STATES_ONLY if topics is None else _ALL
                ),
            ) from None


def _named(database: Any, query: str) -> set[tuple[str, str]]:
    """The tables that a query names, each as its schema, or nothing, and its name. Raises OptionError if it is not one SELECT."""
    if not is_one_select(query):
        raise OptionError(
            "the query is not one SELECT", hint="Write a query that begins with SELECT, FROM or WITH."
        )
    found = set[tuple[str, str]]()

    def note(node: dict[str, Any]) -> None:
        if node.get("type") == "BASE_TABLE":
            found.add((node["schema_name"], node["table_name"]))

    (tree,) = database.execute("select json_serialize_sql($1)", [query]).fetchone()
    json.loads(tree, object_hook=note)
    plain = {name.lower() for schema, name in found if not schema}
    check_case("tables", (name for _, name in found if name.lower() in plain))
    return found


def _exported(
    plan: Plan, origin: Origin, topics: OneCommitLog | None, named: set[tuple[str, str]], folder: Path
) -> list[str]:
    """Export the tables that are named, into a folder for each schema. Returns notes."""
    of_states, of_topics = (
        {name for schema, name in named if schema in ("", one)} for one in (STATES, TOPICS)
    )
    actors = [
        one.name for one in plan.actors if any(f"{name}_".startswith(f"{one.name}_") for name in of_states)
    ]
    timers, notes = TIMERS_TABLE in of_states, list[str]()
    if actors or timers:
        options = StateOptions(actors=() if timers else tuple(actors), timers=timers)
        notes += export.export_state(plan, origin, Destination(folder / STATES), options).notes
    if topics is not None and (wanted := sorted(of_topics & plan.topics.keys())):
        notes += export.export_topics(plan, topics, Destination(folder / TOPICS), wanted).notes
    return notes


def _state_tables(plan: Plan) -> Iterator[str]:
    for one in plan.actors:
        yield one.name
        yield from (f"{one.name}_{each.name}" for each in one.schema.fields if each.kind != "value")
    yield TIMERS_TABLE
