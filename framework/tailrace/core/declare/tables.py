"""The declaration of tables: ``App.table``, which ``App`` inherits."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, TypeVar, Unpack, cast, overload

from tailrace.core.declare.declarations import Declarations
from tailrace.core.declare.event_marks import KeyedType
from tailrace.core.declare.topic import Table, TableOptions, TopicOptions
from tailrace.core.declare.topic_declaration import FROM_TYPE, declare_topic
from tailrace.core.errors import DefinitionError
from tailrace.core.suggestions import refuse_unknown

E = TypeVar("E")
K = TypeVar("K")


class Tables(Declarations):
    """What an app can do with tables."""

    @overload
    def table(
        self,
        name: str,
        type: type[E],
        *,
        key: Callable[[E], K],
        key_type: Any = None,
        **options: Unpack[TableOptions[E]],
    ) -> Table[E, K]: ...
    @overload
    def table(
        self,
        name: str,
        type: type[E],
        *,
        key: str | tuple[str, ...] = ...,
        key_type: type[K],
        **options: Unpack[TableOptions[E]],
    ) -> Table[E, K]: ...
    @overload
    def table(self, name: str, type: KeyedType[E, K], **options: Unpack[TableOptions[E]]) -> Table[E, K]: ...
    @overload
    def table(
        self,
        name: str,
        type: type[E],
        *,
        key: str | tuple[str, ...] = ...,
        **options: Unpack[TableOptions[E]],
    ) -> Table[E, Any]: ...
    @overload
    def table(
        self,
        name: str,
        type: UnionType,
        *,
        key: str | tuple[str, ...] | Callable[[Any], Any] = ...,
        key_type: Any = None,
        **options: Unpack[TableOptions[Any]],
    ) -> Table[Any, Any]: ...
    def table(
        self,
        name: str,
        type: Any,
        *,
        key: Any = FROM_TYPE,
        key_type: Any = None,
        **options: Unpack[TableOptions[Any]],
    ) -> Table[Any, Any]:
        """Declare a table: a topic that keeps the last event of each key.

        The log may delete the events before it (compaction), so a reader that was away sees the newest value of
        each key, and maybe some before. ``ctx.delete`` deletes a key. See ``docs/tables.md``.

        The arguments are those of ``topic``, without ``late``, ``repartition`` and ``broadcast``. A key is required, and each
        record must have the key of its event. The event time of a deletion is the timestamp of its record.

        Raises:
            DefinitionError: There is no key, an argument is unknown or does not fit, or the name is taken.
        """
        where, given = f"the table {name!r}", cast("TopicOptions[Any]", options)
        self._free(name, "table")
        if refused := [one for one in ("late", "repartition", "broadcast") if one in options]:
            raise DefinitionError(
                f"{where} has {refused[0]}=, which a table cannot have",
                hint="Late values count, too (see ctx.is_late). A record must have the key of its event: declare "
                "what has another key as a topic, and emit it to the table.",
            )
        refuse_unknown(where, options, ("key", "key_type", *TableOptions.__annotations__))
        topic = declare_topic(self.name, self.partitions, name, type, key, key_type, given, Table)
        if topic.key_of is None:
            raise DefinitionError(
                f"{where} has no key, and would keep the last event of each",
                hint="Mark it on the event type (tr.Key[...]), or add key=.",
            )
        self.topics[name] = topic
        self._plan = None
        return cast("Table[Any, Any]", topic)
