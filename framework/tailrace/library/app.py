"""The app with the operators of the library: what ``tailrace.App`` is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, Unpack, overload

from tailrace.core.declare.app import App as CoreApp
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Edge, Order, Stream, Topic
from tailrace.library import rolling, window_field, windowed
from tailrace.library.agg import Aggregate
from tailrace.library.joins import WithJoins
from tailrace.library.rolling import Top
from tailrace.library.windowed import Windowed, WindowOptions
from tailrace.library.windows import AnyWindows

E = TypeVar("E")
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class App(WithJoins):
    """See ``core.declare.app.App``; its methods for windows and joins are here."""

    def plan(self) -> Plan:
        """Check all declarations and compile them to a plan; see ``core.declare.app.App.plan``."""
        windowed.check_added(self)
        window_field.check_fields(self)
        plan = super().plan()
        windowed.check_corrections(self, plan)
        return plan

    @overload
    def window(
        self,
        name: str,
        edge: Edge[E, K],
        windows: AnyWindows,
        aggregate: Aggregate[E, Any, V],
        *,
        into: None = None,
        **options: Unpack[WindowOptions],
    ) -> Stream[Windowed[K, V], K]: ...
    @overload
    def window(
        self,
        name: str,
        edge: Edge[E, K],
        windows: AnyWindows,
        aggregate: Aggregate[E, Any, Any],
        *,
        into: Topic[R, Any],
        **options: Unpack[WindowOptions],
    ) -> Topic[R, Any]: ...
    def window(
        self,
        name: str,
        edge: Edge[Any, Any],
        windows: AnyWindows,
        aggregate: Aggregate[Any, Any, Any],
        *,
        into: Topic[Any, Any] | None = None,
        **options: Unpack[WindowOptions],
    ) -> Edge[Any, Any]:
        """Aggregate the events of each key by windows of event time, and return the stream of the results.

            hourly = app.window("hourly", readings, windows.tumbling("1h"), agg.mean(lambda r: r.celsius))

        ``name`` is the stable name of its state, and that of the stream of ``tr.Windowed`` which it returns. Take it with
        ``@app.process(hourly)`` or ``@tr.process(hourly)``, or give it to another operator. A window with events gives its result
        when the watermark reaches its end; the event time of the result is the last instant of the window (of a session: its last
        event plus the gap). Results are functions of the set of events and of their times. See ``docs/windows.md``.

        - ``into``: a topic for the results instead; it is returned. The fields of its type are filled by name: the key,
          ``start``, ``end``, ``value``, ``kind``, the event time, and the fields of a value of ``agg.several``.
        - ``lateness``: how long after its end a window takes late events (``"1d"``). Each gives a result of the kind
          ``"correction"`` at once. Its state is kept as long.
        - ``late``: a topic for events that no window takes; without it they are counted (``h.dropped``).
        - ``early``: a result of the kind ``"early"`` after every so many events of a window.
        - ``early_clock``: an early result of each window that has changed, at multiples of this time **of the clock** (``"10s"``).
          How many there are depends on when the service runs; a replay gets the recorded ones.
        - ``fill``: the value of tumbling or calendar windows without events; ``fill_windows``: how many are filled after one with
          events (default: 24). A key without further events gives no more than that.

        At the end of input all windows close. In a run with ``--until-end`` those that the watermark has not reached stay open.

        Raises:
            DefinitionError: Arguments do not go together, the name is taken, or the input has early results or corrections,
                which would count twice.
            DurableTypeError: The accumulator has a type that cannot be stored.
        """
        return windowed.add_window(self, name, edge, windows, aggregate, into, options)

    def dedupe(
        self,
        name: str,
        edge: Edge[E, K],
        *,
        within: str | int | timedelta,
        by: str | tuple[str, ...] | Callable[[E], Any] = "id",
        by_type: Any = None,
        lateness: str | int | timedelta = 0,
        late: Topic[E, Any] | None = None,
        order: Order | None = None,
    ) -> Stream[E, K]:
        """Pass on the first event of each id, and return the stream of these events.

        An event is a duplicate if an event of the same key and id was passed on whose event time differs by at most ``within``.
        Duplicates are counted by the metric ``<name>.duplicates``. An id is forgotten when no further duplicate is expected.

        - ``by``: the field that has the id, several (``("shop", "number")``), or a function of the event.
        - ``by_type``: the type of the ids, for a function that does not annotate its return type. Ids are ``str``, ``int``, ``bytes``, ``UUID``,
          dates, enums, or tuples of them. The event of another id, such as None, fails.
        - ``lateness``: how late an event may be and still be passed on. Ids are kept for so much longer. An event that is later
          is not passed on, since its id may be forgotten: it is counted as dropped, or written to the topic ``late``.
        - ``order``: ``"event-time"`` makes the first event by event time the one that is passed on. By default it is the first to arrive,
          unless an operator in the order of event time, such as a join, takes the stream; ``"arrival"`` refuses such an operator.

        Raises:
            DefinitionError: An argument is not allowed, the type of the ids is not known, or the name is taken.
        """
        return rolling.add_dedupe(self, name, edge, by, within, by_type, lateness, late, order)

    def limit(
        self,
        name: str,
        edge: Edge[E, K],
        n: int,
        *,
        per: str | int | timedelta,
        rest: Topic[E, Any] | None = None,
        late: Topic[E, Any] | None = None,
        order: Order | None = None,
    ) -> Stream[E, K]:
        """Pass on at most ``n`` events of a key in each period of event time, and return their stream.

        Periods are aligned like ``windows.tumbling``: ``per="1m"`` is from minute to minute.

        - ``rest``: a topic for the events that are too many; without it the metric ``<name>.limited`` counts them.
        - ``late``: a topic for late events of a period that has ended; without it they are counted as dropped.
        - ``order``: ``"event-time"`` passes on the first by event time. By default they are the first to arrive.

        Raises:
            DefinitionError: An argument is not allowed, or the name is taken.
        """
        return rolling.add_limit(self, name, edge, n, per, rest, late, order)

    def sample(
        self,
        name: str,
        edge: Edge[E, K],
        *,
        by: str | tuple[str, ...] | Callable[[E], Any],
        fraction: float,
        order: Order | None = None,
    ) -> Stream[E, K]:
        """Pass on the events of about this fraction of all values, and return their stream.

        A hash of the value decides, and nothing is stored. So the events of one value are all passed on, or none. The same values are chosen
        in every run and by every ``sample``, also of another topic, and a smaller sample is part of a larger one.

        - ``by``: the field that has the value, several, or a function of the event: ``"id"`` for a part of the events, ``"user"`` for all
          events of a part of the users.

        Raises:
            DefinitionError: An argument is not allowed, or the name is taken.
        """
        return rolling.add_sample(self, name, edge, by, fraction, order)

    def top(
        self,
        name: str,
        edge: Edge[E, K],
        n: int,
        *,
        by: str | tuple[str, ...] | Callable[[E], Any],
        of: str | Callable[[E], float],
        by_type: Any = None,
    ) -> Stream[Top[K], K]:
        """Rank names by their exact sums over all events of a key so far, and return the stream of the best ``n`` whenever they change.

        - ``by``: the field that has the name, several, or a function of the event; ``by_type`` as for ``dedupe``.
        - ``of``: the number that an event adds, by field or function. Of equal sums the lesser name goes first.

        The sums of all names are kept. An event reads one of them, but all of its key if it makes one of the best smaller.

        Raises:
            DefinitionError: An argument is not allowed, or the name is taken.
        """
        return rolling.add_top(self, name, edge, n, by, by_type, of)


App.__doc__ = CoreApp.__doc__
