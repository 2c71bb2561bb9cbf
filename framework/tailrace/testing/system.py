"""A whole system in a test: several apps on one log, chained by topics that one writes and another reads.

    with System(shipping, billing) as s:
        s.send(parcels, Parcel("p1", 0, 12.5), Parcel("p2", 90_000, 3.0))
        s.advance_watermark(HOUR_MS)
        assert s.emitted(invoices) == [Invoice("shipping", 15.5)]
        assert s[billing].state(Account, "shipping").open == 15.5
        s.replay()

The methods are those of ``Harness``. Watermarks travel from app to app as in live services: each task
publishes its own with its commits, and an input declared with ``watermark="upstream"`` follows the lowest of
them. ``advance_watermark`` raises the watermarks of inputs from outside of the system.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack

from tailrace.core.declare.app import App
from tailrace.core.declare.topic import Topic
from tailrace.core.engine.task import TaskSettings
from tailrace.core.errors import UsageError
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.testing.driver import Driver
from tailrace.testing.emitted import Emitted
from tailrace.testing.exploring.exploration import ExploreOptions, explore_or_raise
from tailrace.testing.exploring.feed import feed_of_log
from tailrace.testing.exploring.report import ExploreReport
from tailrace.testing.inputs import written_topics
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.replaying import ReplayReport
from tailrace.testing.service import Service, StateKind
from tailrace.testing.view import View

E = TypeVar("E")


class AppView(View):
    """One app of a system, ``system[app]``: emitted events, committed state, late events and replay."""

    def __init__(self, service: Service, log: MemoryLog, recover: Callable[[Service], None]) -> None:
        super().__init__(service.plan, log, service)
        self._recover = recover

    def recover(self) -> None:
        """Start the app, if it is down."""
        self._recover(self._service)


class System(Driver):
    """Runs several apps in a test, on one log. Use it as a context manager, or call ``close``.

    The options are those of ``Harness``, and apply to every app; ``commit_every`` counts the records of each
    app separately. ``system[app]`` gives the state and outputs of one app. A call returns when no app has
    anything left to do. If it raises an error from an app, all apps are down, and the next call starts them
    again.

    Topics are identified by their names: a topic that one app writes and another reads under the same name is
    one topic.
    """

    def __init__(
        self,
        *apps: App,
        partitions: int | None = None,
        now_ms: int | datetime = 0,
        checked: bool = True,
        reload: bool = False,
        slice_size: int = 1_000,
        commit_every: int | Literal["manual"] | None = None,
        state: StateKind = "memory",
        settings: TaskSettings | None = None,
    ) -> None:
        _check_apart(apps)
        super().__init__(
            now_ms=now_ms,
            checked=checked,
            reload=reload,
            slice_size=slice_size,
            commit_every=commit_every,
            state=state,
            settings=settings,
        )
        self.log = MemoryLog()
        plans = [
            app.plan() if partitions is None else replace(app.plan(), partitions=partitions) for app in apps
        ]
        read = [frozenset(one.name for one in plan.inputs) for plan in plans]
        order = _end_order([written_topics(plan) for plan in plans], read)
        for group in reversed(order):
            # Those that read a topic first: it has their number of partitions, whatever those that write it
            # have.
            for number in group:
                prepare_topics(self.log, plans[number], create_declared=True)
        circles = {number for group in order if len(group) > 1 for number in group}
        services = [
            Service(
                plan,
                self.log,
                self._read_clock,
                # Apps in a circle end together, and each then gets records that another emits at its end.
                self._options._replace(after_end=number in circles),
                on_visible=self._visible.extend,
            )
            for number, plan in enumerate(plans)
        ]
        self._down: set[Service] = set()
        self._apps = list(apps)
        self._views = [AppView(one, self.log, self._start_one) for one in services]
        self._drive(services, [[services[number] for number in group] for group in order])
        try:
            self.recover()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, app: App) -> AppView:
        """One app of the system. Raises UsageError for another one."""
        return self._views[self._number(app)]

    def emitted(self, topic: Topic[E, Any]) -> list[E]:
        """All events that any of the apps has emitted to a topic so far, as far as they are committed."""
        return Emitted(self._visible).to(topic)

    def end_of_input(self) -> Emitted:
        """End all inputs, app after app, along the topics between them: see ``Harness.end_of_input``.

        An app ends after all apps that write its inputs; apps in a circle end together. Afterwards no events
        can be sent.
        """
        if self._down:
            raise UsageError(
                f"the app {min(one.plan.app for one in self._down)!r} is down, and takes no end of its input",
                hint="Call end_of_input behind the with block of System.down.",
            )
        return super().end_of_input()

    def crash(self, *apps: App) -> None:
        """Kill some apps, or all. Uncommitted work is lost. The next call starts them again."""
        for one in self._chosen(apps):
            one.kill()

    def recover(self, *apps: App) -> None:
        """Start some apps, or all, that are down. Every call does so if necessary."""
        self._start([one for one in self._chosen(apps) if one not in self._down])

    @contextmanager
    def down(self, *apps: App) -> Generator[None]:
        """Kill some apps and leave them down for as long as the block lasts. The others continue.

        Afterwards they are started, and catch up with the next call.
        """
        chosen = [one for one in self._chosen(apps) if one not in self._down]
        for one in chosen:
            one.kill()
        self._down.update(chosen)
        try:
            yield
        finally:
            self._down.difference_update(chosen)
        self._start(chosen)

    def replay(self) -> dict[str, ReplayReport]:
        """Replay every app, as ``Harness.replay`` does; the reports by the names of the apps.

        Raises ReplayDivergedError, which names the first difference.
        """
        return {view.plan.app: view.replay() for view in self._views}

    def explore(self, **options: Unpack[ExploreOptions]) -> dict[str, ExploreReport]:
        """Explore every app by itself, over what has come to it so far: see ``Harness.explore``.

        Raises ScheduleDependentError for the first app whose results depend on the schedule, UsageError if
        nothing came to any.
        """
        feeds = {view.plan.app: feed_of_log(view.plan, self.log) for view in self._views}
        chosen = [view for view in self._views if feeds[view.plan.app].count] or self._views[:1]
        return {
            one.plan.app: explore_or_raise(one.plan, feeds[one.plan.app], self._now_ms, **options)
            for one in chosen
        }

    @property
    def _read_by_test(self) -> Sequence[AppView]:
        return self._views

    @property
    def _running(self) -> Sequence[Service]:
        return [one for one in self._services if one not in self._down]

    def _chosen(self, apps: Sequence[App]) -> Sequence[Service]:
        return [self._services[self._number(app)] for app in apps] if apps else self._services

    def _number(self, app: App) -> int:
        for number, known in enumerate(self._apps):
            if known is app:
                return number
        raise UsageError(
            f"{app!r} is not an app of the system",
            hint=f"Its apps are {', '.join(one.plan.app for one in self._services)}. Give the app itself.",
        )

    def _start_one(self, service: Service) -> None:
        if service in self._down:
            raise UsageError(
                f"the app {service.plan.app!r} is down",
                hint="Look at it behind the with block of System.down.",
            )
        self._start([service])


def _check_apart(apps: Sequence[App]) -> None:
    """Each app has its own name: tasks of the same name would fence each other."""
    if not apps:
        raise UsageError("a system without an app", hint="Give one app or more.")
    names = [app.name for app in apps]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"two apps of the system have the name {twice!r}",
            hint='Give one of them another name, for example App.renamed("other").',
        )


def _end_order(written: Sequence[frozenset[str]], read: Sequence[frozenset[str]]) -> list[list[int]]:
    """The apps, by number, in the order in which their inputs end; a group holds those that end together."""
    numbers = range(len(written))
    following = {
        one: {other for other in numbers if not written[one].isdisjoint(read[other])} for one in numbers
    }
    for _ in numbers:
        following = {
            one: after.union(*(following[other] for other in after)) for one, after in following.items()
        }
    circles = {
        one: frozenset({one} | {other for other in after if one in following[other]})
        for one, after in following.items()
    }

    def before(circle: frozenset[int]) -> int:
        """How many come before: more than before any of those, as all that comes before those does, too."""
        return sum(not circle.isdisjoint(following[one]) for one in numbers if one not in circle)

    return [sorted(circle) for circle in sorted(dict.fromkeys(circles.values()), key=before)]
