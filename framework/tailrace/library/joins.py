"""The joins of an app: the part of ``App`` that declares them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, get_args, get_origin, overload

from tailrace.core.declare.app import App as CoreApp
from tailrace.core.declare.topic import Edge, Stream, Topic
from tailrace.core.errors import DefinitionError
from tailrace.library import asof, gather, interval
from tailrace.library.filling import filler
from tailrace.library.gather import Gathered
from tailrace.library.operators import handler
from tailrace.library.pairs import Duration, How, Late, Pair, Within
from tailrace.library.windowed import pass_on
from tailrace.library.windows import Calendar, Tumbling

K = TypeVar("K")
K2 = TypeVar("K2")
L = TypeVar("L")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
To = TypeVar("To", bound=Topic[Any, Any])
Side: TypeAlias = Edge[Any, K]
By: TypeAlias = str | tuple[str, ...] | Callable[[L], K2 | None]
Fixed: TypeAlias = Tumbling | Calendar
Inner: TypeAlias = Literal["inner"]
Left: TypeAlias = Literal["left"]
Right: TypeAlias = Literal["right"]
Full: TypeAlias = Literal["full"]


class Options(TypedDict, total=False):
    """Options of ``App.join`` and ``App.window_join``."""

    how: How
    late: Late


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
        how: Inner = ...,
        late: Late = ...,
    ) -> Stream[Pair[L, R], K]: ...
    @overload
    def join(
        self, name: str, left: Edge[L, K], right: Edge[R, K], *, within: Within, how: Left, late: Late = ...
    ) -> Stream[Pair[L, R | None], K]: ...
    @overload
    def join(
        self, name: str, left: Edge[L, K], right: Edge[R, K], *, within: Within, how: Right, late: Late = ...
    ) -> Stream[Pair[L | None, R], K]: ...
    @overload
    def join(
        self, name: str, left: Edge[L, K], right: Edge[R, K], *, within: Within, how: Full, late: Late = ...
    ) -> Stream[Pair[L | None, R | None], K]: ...
    @overload
    def join(
        self,
        name: str,
        left: Side[K],
        right: Side[K],
        *,
        within: Within,
        into: To,
        **options: Unpack[Options],
    ) -> To: ...
    def join(
        self,
        name: str,
        left: Any,
        right: Any,
        *,
        within: Within,
        how: How = "inner",
        late: Late = None,
        into: Any = None,
    ) -> Any:
        """Join the events of two inputs that have one key and are near each other in event time. Returns the stream of pairs.

            clicked = app.join("clicked", impressions, clicks, within=("0s", "10m"), how="left")

        ``within=(a, b)``: an event of ``left`` at time l and one of ``right`` at time r are a pair if a <= r - l <= b, so both
        bounds belong to it; a bound may be negative (``"-5m"``). ``within="5m"`` means ``("-5m", "5m")``. Every pair is given
        once, as a ``tr.Pair``, at the time of the later of both. Events are handled in the order of event time
        (``order="event-time"``), so results do not depend on which input is read first. See ``docs/joins.md``.

        - ``how``: ``"inner"`` (the default) gives pairs. ``"left"`` also gives each left event without a match, as
          ``tr.Pair(left, None)``, when none can come any more: at l + b, but not before l. ``"right"`` gives each right event without
          a match, at r - a, and ``"full"`` both.
        - ``into``: a topic for the results instead; it is returned. The fields of its type are filled by name: the key, the event time,
          ``left`` and ``right``, and the fields of both events. A field that both have, or of another type, is refused.
        - ``late``: a topic for events that are late. They are not joined; without it they are counted (``h.dropped``). Give one
          topic, or, if the inputs have different types, one for each: ``late=(late_impressions, late_clicks)``.

        An event is kept until its last partner could have come.

        Raises:
            DefinitionError: Arguments do not go together, the name is taken, the keys differ, or an input has no place in the
                order of event time (``watermark=False``).
            DurableTypeError: Events of an input have a type that cannot be stored.
        """
        pairs = interval.add_join(self, name, left, right, within, how, late)
        return self._into(name, pairs, into, left, right)

    @overload
    def window_join(
        self,
        name: str,
        left: Edge[L, K],
        right: Edge[R, K],
        windows: Fixed,
        *,
        how: Inner = ...,
        late: Late = ...,
    ) -> Stream[Pair[L, R], K]: ...
    @overload
    def window_join(
        self, name: str, left: Edge[L, K], right: Edge[R, K], windows: Fixed, *, how: Left, late: Late = ...
    ) -> Stream[Pair[L, R | None], K]: ...
    @overload
    def window_join(
        self, name: str, left: Edge[L, K], right: Edge[R, K], windows: Fixed, *, how: Right, late: Late = ...
    ) -> Stream[Pair[L | None, R], K]: ...
    @overload
    def window_join(
        self, name: str, left: Edge[L, K], right: Edge[R, K], windows: Fixed, *, how: Full, late: Late = ...
    ) -> Stream[Pair[L | None, R | None], K]: ...
    @overload
    def window_join(
        self,
        name: str,
        left: Side[K],
        right: Side[K],
        windows: Fixed,
        *,
        into: To,
        **options: Unpack[Options],
    ) -> To: ...
    def window_join(
        self,
        name: str,
        left: Any,
        right: Any,
        windows: Fixed,
        *,
        how: How = "inner",
        late: Late = None,
        into: Any = None,
    ) -> Any:
        """Join the events of two inputs that have one key and fall into one window. Returns the stream of pairs.

            together = app.window_join("together", orders, refunds, windows.tumbling("1h"))

        When a window ends, each left event of it is given with each right event, as a ``tr.Pair`` at the last instant of the
        window: in the order of the left events, then of the right ones, each by time and arrival. ``windows`` is
        ``windows.tumbling``, ``daily``, ``weekly`` or ``monthly``. ``how="left"`` also gives the left events of a window without
        right ones, as ``tr.Pair(left, None)``, ``"right"`` the reverse, ``"full"`` both. ``into``, ``late`` and the order of events are those
        of ``join``.

        Raises:
            DefinitionError: As for ``join``.
            DurableTypeError: Events of an input have a type that cannot be stored.
        """
        pairs = interval.add_window_join(self, name, left, right, windows, how, late)
        return self._into(name, pairs, into, left, right)

    @overload
    def asof(
        self, name: str, left: Edge[L, K], right: Edge[R, K], *, keep: Duration | None, late: Late = None
    ) -> Stream[Pair[L, R | None], K]: ...
    @overload
    def asof(
        self, name: str, left: Side[K], right: Side[K], *, keep: Duration | None, late: Late = ..., into: To
    ) -> To: ...
    def asof(
        self, name: str, left: Any, right: Any, *, keep: Duration | None, late: Late = None, into: Any = None
    ) -> Any:
        """Join each left event with the version of the right side that is valid at its time. Returns the stream of pairs.

            with_price = app.asof("with-price", orders, prices, keep="1d")

        That is the latest right event of the key that is not later than the left one, also if it has the same time; of several
        with one time, the last to arrive. If there is none, or it is older than ``keep``, the pair has None. The pair has the time of
        the left event. Events are handled in the order of event time (``order="event-time"``). See ``docs/joins.md``.

        - ``keep``: how long a version is valid at most (``"1d"``). Then the state of the key is gone. None keeps the last version
          of every key for good.
        - ``into``, ``late``: as for ``join``.

        Raises:
            DefinitionError: As for ``join``.
            DurableTypeError: Events of an input have a type that cannot be stored.
        """
        return self._into(name, asof.add_asof(self, name, left, right, keep, late), into, left, right)

    @overload
    def gather(
        self, name: str, a: Edge[A, K], b: Edge[B, K], /, *, within: Duration, late: Late = ...
    ) -> Stream[Gathered[tuple[A | None, B | None]], K]: ...
    @overload
    def gather(
        self, name: str, a: Edge[A, K], b: Edge[B, K], c: Edge[C, K], /, *, within: Duration, late: Late = ...
    ) -> Stream[Gathered[tuple[A | None, B | None, C | None]], K]: ...
    @overload
    def gather(
        self,
        name: str,
        a: Edge[A, K],
        b: Edge[B, K],
        c: Edge[C, K],
        d: Edge[D, K],
        /,
        *,
        within: Duration,
        late: Late = ...,
    ) -> Stream[Gathered[tuple[A | None, B | None, C | None, D | None]], K]: ...
    @overload
    def gather(
        self, name: str, /, *inputs: Edge[Any, K], within: Duration, late: Late = ...
    ) -> Stream[Gathered[tuple[Any, ...]], K]: ...
    @overload
    def gather(
        self, name: str, /, *inputs: Edge[Any, K], within: Duration, late: Late = ..., into: To
    ) -> To: ...
    def gather(
        self, name: str, /, *inputs: Edge[Any, Any], within: Duration, late: Late = None, into: Any = None
    ) -> Any:
        """Gather one event of each input, by key, and return the stream of cases.

            cases = app.gather("cases", placed, paid, shipped, within="7d")

        The first event of a key opens a case. It is given as ``tr.Gathered`` when every input has an event, at the time of the last
        of them, or else at the time of the first one plus ``within``, with None for what is missing; an event at this very
        instant still belongs to it. A further event of an input that the case has already is left out: it is counted in
        ``repeated`` and by the metric ``<name>.repeated.<input>``. After its end, the next event opens a new case.
        Events are handled in the order of event time (``order="event-time"``). See ``docs/joins.md``.

        - ``into``, ``late``: as for ``join``.

        Raises:
            DefinitionError: As for ``join``.
            DurableTypeError: Events of an input have a type that cannot be stored.
        """
        return self._into(name, gather.add_gather(self, name, inputs, within, late), into, *inputs)

    @overload
    def lookup(
        self, name: str, edge: Edge[L, K], table: Topic[R, K2], *, by: By[L, K2]
    ) -> Stream[Pair[L, R | None], K]: ...
    @overload
    def lookup(
        self, name: str, edge: Edge[L, Any], table: Topic[Any, K2], *, by: By[L, K2], into: To
    ) -> To: ...
    def lookup(self, name: str, edge: Any, table: Any, *, by: Any, into: Any = None) -> Any:
        """Give each event together with the newest event of a broadcast topic. Returns the stream of pairs.

            judged = app.lookup("judged", payments, rules, by="kind")

        ``table`` is declared with ``broadcast=True``, and ``by`` gives its key: a field of the event, several, or a function of the event.
        Without such a key in the table the pair is ``tr.Pair(event, None)``. Each event is looked up when it arrives, so what
        a pair has depends on when the table was changed; see "Tables that every task reads" in ``docs/concepts.md``.

        - ``into``: as for ``join``.

        Raises:
            DefinitionError: The topic is not broadcast, ``by`` is not of the type of its key, or the name is taken.
        """
        return self._into(name, asof.add_lookup(self, name, edge, table, by), into, edge)

    def _into(self, name: str, results: Stream[Any, Any], into: Any, *inputs: Edge[Any, Any]) -> Any:
        """Let a function write the results to the topic, if there is one. Returns where they go."""
        if into is None:
            return results
        if into in inputs:
            raise DefinitionError(
                f"the operator {name!r} has {into.name!r} as its input and as into=",
                hint="Give another topic.",
            )
        types = get_args(results.type)
        gets: list[Callable[[Any], Any]] = [attrgetter("left"), attrgetter("right")]
        if get_origin(results.type) is Gathered:
            types = get_args(types[0])
            gets = [partial(_part, at) for at in range(len(types))]
        parts = [*zip(gets, types, strict=True)]
        event = filler(f"the operator {name!r}", into, inputs[0], results.type, parts, sure=True)

        def publish(result: Any, ctx: Any) -> None:
            ctx.emit(into, event(result, ctx.key, ctx.event_time))

        pass_on(self, results, into)
        self.process(results, name=f"{name}-into", emits=(into,))(handler(publish, lambda one: one))
        return into


def _part(at: int, case: Gathered[Any]) -> Any:
    return case.parts[at]
