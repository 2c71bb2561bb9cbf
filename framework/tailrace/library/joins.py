"""The joins of an app: the part of ``App`` that declares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from tailrace.core.declare.app import App as CoreApp
from tailrace.core.declare.topic import Edge, Stream, Topic
from tailrace.library import interval, lookup
from tailrace.library.pairs import How, LateTopics, Pair, Within

K = TypeVar("K")
K2 = TypeVar("K2")
L = TypeVar("L")
R = TypeVar("R")


class WithJoins(CoreApp):
    """An app with the methods for joins."""

    @overload
    def join(
        self,
        name: str,
        left: Edge[L, K],
        right: Edge[R, K],
        *,
        within: Within,
        how: Literal["inner"] = "inner",
        late: LateTopics = None,
    ) -> Stream[Pair[L, R], K]: ...
    @overload
    def join(
        self,
        name: str,
        left: Edge[L, K],
        right: Edge[R, K],
        *,
        within: Within,
        how: Literal["left"],
        late: LateTopics = None,
    ) -> Stream[Pair[L, R | None], K]: ...
    @overload
    def join(
        self,
        name: str,
        left: Edge[L, K],
        right: Edge[R, K],
        *,
        within: Within,
        how: Literal["right"],
        late: LateTopics = None,
    ) -> Stream[Pair[L | None, R], K]: ...
    @overload
    def join(
        self,
        name: str,
        left: Edge[L, K],
        right: Edge[R, K],
        *,
        within: Within,
        how: Literal["full"],
        late: LateTopics = None,
    ) -> Stream[Pair[L | None, R | None], K]: ...
    def join(
        self,
        name: str,
        left: Edge[Any, K],
        right: Edge[Any, K],
        *,
        within: Within,
        how: How = "inner",
        late: LateTopics = None,
    ) -> Stream[Any, K]:
        """Join the events of two inputs that have one key and are near each other in event time. Returns the stream of pairs.

            clicked = app.join("clicked", impressions, clicks, within=("0s", "10m"), how="left")

        ``within=(a, b)``: an event of ``left`` at time l and one of ``right`` at time r are a pair if a <= r - l <= b, so both
        bounds belong to it; a bound may be negative (``"-5m"``). ``within="5m"`` means ``("-5m", "5m")``. Every pair is given
        once, as a ``tr.Pair``, at the time of the later of both. Events are handled in the order of event time
        (``order="event-time"``), so results do not depend on which input is read first. See ``docs/joins.md``.

        - ``how``: ``"inner"`` (the default) gives pairs. ``"left"`` also gives each left event without a match, as
          ``tr.Pair(left, None)``, when none can come any more: at l + b, but not before l. ``"right"`` gives each right event without
          a match, at r - a, and ``"full"`` both.
        - ``late``: a topic for events that are late. They are not joined; without it they are counted (``h.dropped``). Give one
          topic, or, if the inputs have different types, one for each: ``late=(late_impressions, late_clicks)``.

        An event is kept until its last partner could have come.

        Raises:
            DefinitionError: Arguments do not go together, the name is taken, the keys differ, or an input has no place in the
                order of event time (``watermark=False``).
            DurableTypeError: Events of an input have a type that cannot be stored.
        """
        return interval.add_join(self, name, left, right, within, how, late)

    def lookup(
        self,
        name: str,
        edge: Edge[L, K],
        table: Topic[R, K2],
        *,
        by: str | tuple[str, ...] | Callable[[L], K2 | None],
    ) -> Stream[Pair[L, R | None], K]:
        """Give each event together with the newest event of a broadcast topic. Returns the stream of pairs.

            judged = app.lookup("judged", payments, rules, by="kind")

        ``table`` is declared with ``broadcast=True``, and ``by`` gives its key: a field of the event, several, or a function of the event.
        Without such a key in the table the pair is ``tr.Pair(event, None)``. Each event is looked up when it arrives, so what
        a pair has depends on when the table was changed; see "Tables that every task reads" in ``docs/concepts.md``.

        Raises:
            DefinitionError: The topic is not broadcast, ``by`` is not of the type of its key, or the name is taken.
        """
        return lookup.add_lookup(self, name, edge, table, by)
