"""Questions about actors and tables; and answers about the instances of a partition, from its committed rows.

An answer about a whole instance, a field or a query says what it stands on: the position in the changelog, its age, and the times by
which values with a time to live were judged (see ``unexpired``). Of a map or list it has the first entries only, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.durations import is_instant
from tailrace.core.engine import tape
from tailrace.core.engine.query import QueryReader
from tailrace.core.errors import QueryError
from tailrace.core.handling.collections import ListState, MapState
from tailrace.core.storage import StateReader
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import EventField, event_fields
from tailrace.core.values.json_values import as_json_value, key_text
from tailrace.core.values.partitioner import partition_of
from tailrace.serve.keys import key_in_url
from tailrace.serve.queries import Query, queries_of
from tailrace.serve.unanswered import BAD_REQUEST, FAILED, NOT_FOUND, Unanswered
from tailrace.serve.unexpired import Unexpired

LIMIT: Final = 100
"""Entries of a map or list in an answer, unless the question says how many."""
MOST: Final = 10_000


class PendingTimer(msgspec.Struct, frozen=True):
    """A pending timer of a key."""

    domain: str
    """``event`` or ``processing``."""
    name: str | None
    """None: it has no name."""
    at_ms: int
    payload: Any = UNSET


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question. Times are in milliseconds since the epoch."""

    app: str
    actor: str | UnsetType = UNSET
    table: str | UnsetType = UNSET
    key: Any
    partition: int
    offset: int
    """The position in the changelog or table: all commits before it are in the answer, and none after it."""
    age_ms: int
    """There was no later commit this long ago. There may be later ones by now."""
    watermark_ms: int | UnsetType | None = UNSET
    """Of the actor. None: before its first event."""
    judged_at_ms: int | UnsetType = UNSET
    """The clock by which values that expire in processing time were left out."""
    timestamp_ms: int | UnsetType = UNSET
    """Of the record with the value of the table."""
    fields: dict[str, Any] | UnsetType = UNSET
    timers: list[PendingTimer] | UnsetType = UNSET
    value: Any = UNSET
    result: Any = UNSET
    cut_short: list[str] | UnsetType = UNSET
    """The maps and lists of which more entries exist than are shown."""


class Question(msgspec.Struct, frozen=True):
    """A question about the key of an actor or a table."""

    of: ActorPlan | Topic[Any, Any]
    key: Any
    partition: int
    name: str = ""
    """A field or query. Empty: the whole instance."""
    arguments: Mapping[str, Any] = {}
    limit: int = LIMIT


class Questions:
    """Understands questions about the actors and tables of an app. Raises DefinitionError: see ``queries_of``."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.actors = {one.name: one for one in plan.actors}
        self.tables = plan.tables
        self.queries: dict[str, dict[str, Query]] = {one.name: queries_of(one) for one in plan.actors}

    def question(
        self, of: str, key: str | bytes, name: str, given: Mapping[str, Sequence[str]], kind: str = ""
    ) -> Question:
        """A question by its parts in the URL: names, the percent-encoded key, and the texts of each argument. ``kind``: the first name is
        that of an ``actor`` or a ``table``. Raises Unanswered.
        """
        plan = self._named(of, kind)
        found = key_in_url(plan, key)
        partition = partition_of(plan.key_codec.encode(found), self.plan.partitions)
        if isinstance(plan, Topic):
            if given:
                what, hint = f"there is no argument {min(given)!r} here", "Only queries have arguments."
                raise Unanswered(what, status=BAD_REQUEST, hint=hint)
            if name and name not in (fields := table_fields(plan)):
                hint = did_you_mean(name, fields, f"It has: {', '.join(fields)}.")
                raise Unanswered(f"{of} has no field {name!r}", status=NOT_FOUND, hint=hint)
            return Question(plan, found, partition, name)
        query = self.queries[plan.name].get(name)
        if query is not None:
            return Question(plan, found, partition, name, query.converted(given))
        known = fields_of(plan)
        if name and name not in known:
            parts = [
                one for one in known if one.startswith(f"{name}__")
            ]  # of a composite field, by its own name
            all_of_them = parts or [*known, *self.queries[plan.name]]
            raise Unanswered(
                f"{plan.name} has no field or query {name!r}",
                status=NOT_FOUND,
                hint=did_you_mean(name, all_of_them, f"It has: {', '.join(all_of_them) or 'none'}."),
            )
        return Question(plan, found, partition, name, limit=_limit(given))

    def _named(self, name: str, kind: str) -> ActorPlan | Topic[Any, Any]:
        kinds: dict[str, Mapping[str, ActorPlan | Topic[Any, Any]]] = {
            "actor": self.actors,
            "table": self.tables,
        }
        asked = [kind] if kind else [*kinds]
        found = [kinds[one][name] for one in asked if name in kinds[one]]
        if len(found) == 1:
            return found[0]
        if found:
            raise Unanswered(
                f"the app {self.plan.app!r} has an actor and a table {name!r}",
                status=BAD_REQUEST,
                hint="Ask `tailrace serve`, which has a path for each.",
            )
        known = [known for one in asked for known in kinds[one]]
        raise Unanswered(
            f"the app {self.plan.app!r} has no {' or '.join(asked)} {name!r}",
            status=NOT_FOUND,
            hint=did_you_mean(name, known, f"There is {', '.join(known) or 'none'}."),
        )


class Answering:
    """Answers questions from the rows of one partition.

    ``state`` must not change during a call. After another version of the app has written its declarations, they are read again.
    """

    def __init__(self, plan: Plan, partition: int, state: StateReader) -> None:
        self._plan = plan
        self._partition = partition
        self._state = state
        self._rows = Unexpired(plan, state)
        self._reader = QueryReader(plan, partition, self._rows)
        self._schema: bytes | None = b""
        self._cut: tuple[bytes, Mapping[str, int], int] | None = None

    def answer(self, question: Question, cut: bytes, offset: int, age_ms: int, now_ms: int) -> Answer:
        """The answer at a cut. Raises Unanswered; IncompatibleStateError: another version of the app has written the state."""
        actor = question.of
        assert isinstance(actor, ActorPlan)
        instance = self.instance(actor.cls, question.key, cut, now_ms)
        if instance is None:
            raise Unanswered(
                "there is no instance of this key", status=NOT_FOUND, actor=actor.name, key=question.key
            )
        watermark_ms = self._rows.watermark_of(actor.name)
        answer = Answer(
            app=self._plan.app,
            actor=actor.name,
            key=as_json_value(question.key),
            partition=self._partition,
            offset=offset,
            age_ms=age_ms,
            watermark_ms=watermark_ms if is_instant(watermark_ms) else None,
            judged_at_ms=self._rows.now_ms,
        )
        return msgspec.structs.replace(answer, **self._content(question, actor, instance))

    def instance(self, actor: type[Any], key: Any, cut: bytes, now_ms: int) -> Any:
        """The instance of a key at a cut, without values that have expired; None if there is none. Raises IncompatibleStateError."""
        self._judge_by(cut, now_ms)
        return self._reader.instance(actor, key)

    def _judge_by(self, cut: bytes, now_ms: int) -> None:
        schema = self._state.get(rows.SCHEMA_ROW)
        if schema != self._schema:
            self._schema = schema
            self._reader = QueryReader(self._plan, self._partition, self._rows)
        if self._cut is None or self._cut[0] is not cut:
            decoded = tape.decode_cut(cut)
            self._cut = cut, decoded.operators, decoded.now
        _, watermarks, clock_ms = self._cut
        self._rows.judge_by(watermarks, max(clock_ms, now_ms))

    def _content(self, question: Question, actor: ActorPlan, instance: Any) -> dict[str, Any]:
        name, cut_short = question.name, list[str]()
        if name in actor.queries:
            return {"result": self._result(question, actor)}
        collections = {one.attr for one in (*actor.maps, *actor.lists)}
        plain = _plain_fields(actor, instance) if name not in collections else {}
        if name:
            shown = (
                _entries(instance, name, question.limit, cut_short) if name in collections else plain[name]
            )
            return {"value": shown, "cut_short": cut_short or UNSET}
        for one in (*actor.maps, *actor.lists):
            plain[one.attr] = _entries(instance, one.attr, question.limit, cut_short)
        timers = [
            PendingTimer(
                one.domain, one.name, one.due, UNSET if one.payload is None else as_json_value(one.payload)
            )
            for one in self._reader.key_timers(actor.cls, question.key)
        ]
        return {"fields": plain, "timers": timers, "cut_short": cut_short or UNSET}

    def _result(self, question: Question, actor: ActorPlan) -> Any:
        name = question.name
        try:
            result = self._reader.query(actor.cls, question.key, name, **question.arguments)
            shown = as_json_value(result, _collection)
            msgspec.json.encode(shown)  # a lone surrogate
            return shown
        except QueryError as error:
            raise Unanswered(
                error.what, status=FAILED, hint=error.hint, actor=actor.name, query=name, key=question.key
            ) from error
        except (TypeError, UnicodeEncodeError) as error:
            raise Unanswered(
                f"the result cannot be written as JSON: {error}",
                status=FAILED,
                actor=actor.name,
                query=name,
                hint="Return a value that JSON has a form for, such as a msgspec.Struct.",
            ) from None


def fields_of(actor: ActorPlan) -> list[str]:
    """The names of the fields of an actor: plain fields, maps, lists."""
    names: tuple[str, ...] = getattr(actor.cls, "__struct_fields__")  # noqa: B009  # unknown to type checkers
    return [*names, *(one.attr for one in (*actor.maps, *actor.lists))]


def table_fields(table: Topic[Any, Any]) -> dict[str, EventField]:
    """The fields of the events of a table, by their names in its records."""
    return {one.encode_name: one for kind in table.types for one in event_fields(kind).values()}


def _plain_fields(actor: ActorPlan, instance: Any) -> dict[str, Any]:
    """The plain fields as JSON, by the names in the code. Stored forms: they have one for every type that a field may have."""
    stored = msgspec.msgpack.decode(actor.encode(instance))
    names: tuple[str, ...] = getattr(actor.cls, "__struct_fields__")  # noqa: B009  # as above
    written: tuple[str, ...] = getattr(actor.cls, "__struct_encode_fields__")  # noqa: B009  # as above
    return {name: as_json_value(stored[at]) for name, at in zip(names, written, strict=True) if at in stored}


def _entries(instance: Any, name: str, limit: int, cut_short: list[str]) -> Any:
    """The first entries of a map or list as JSON. The keys of a map are texts; those that are none, in JSON."""
    found: MapState[Any, Any] | ListState[Any] = getattr(instance, name)
    shown: Any
    if isinstance(found, MapState):
        pairs = [*islice(found.items(), limit + 1)]
        shown = {key_text(key): as_json_value(value) for key, value in pairs[:limit]}
        is_more = len(pairs) > limit
    else:
        shown = [as_json_value(value) for value in found[:limit]]
        is_more = len(found) > limit
    if is_more:
        cut_short.append(name)
    return shown


def _collection(value: Any) -> Any:
    if isinstance(value, MapState):
        return {key_text(key): one for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # any map
    if isinstance(value, ListState):
        return [*value]
    raise TypeError(f"a {type(value).__name__}")


def _limit(given: Mapping[str, Sequence[str]]) -> int:
    wrong = [name for name in given if name != "limit"]
    text = given["limit"][-1] if "limit" in given else str(LIMIT)
    if wrong or not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST):
        what = f"there is no argument {wrong[0]!r} here" if wrong else f"{text[:40]!r} is no limit"
        raise Unanswered(
            what,
            status=BAD_REQUEST,
            hint=f"Only queries have arguments, and limit=1 to limit={MOST:,} the others.",
        )
    return int(text)
