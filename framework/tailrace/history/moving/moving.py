"""Moves apps from one log to another. This file has the order of the steps.

Theory. A move makes the target the log on which the history of the apps continues. All that refers to the history
stays valid, as every record keeps its offset (``copying``). An app lives on one log at any time (``provenance.moves``). Each
step depends on the one before::

    1  nobody runs the apps on the source     else it is refused. Their transactional ids are taken over, which ends
                                              what a killed process has left open
    2  the target may have them               not if it has records of theirs from before, or if an app that stays
                                              writes what they follow: they would wait for its watermarks
    3  ``arriving`` on the target             from here on they cannot be started there
    4  the topics are copied                  this may take long; problems with records or settings show here
    5  ``left`` on the source                 from here on they cannot be started there; a process that has looked
                                              before is looked for again
    6  the rest is copied                     what came since the copy, up to ends that are final
    7  state, watermarks, positions           rows and cut of each task are one commit, and are compared
    8  the ends of all topics are compared
    9  ``arrived`` on the target              from here on they can be started there

A move that is killed continues with the same command: topics where the target's end; what step 7 has done for a task
or a topic is there as a whole, or not at all. A move that is given up leaves its copies behind: the target must be
emptied before another one. The same holds for a log that the app has lived on before.

What is not moved: consumer groups of others, state folders, the versions of the code that have run (see
``runtime.task_notes``), snapshots and whatever else holds offsets (it remains valid for both logs).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError, OtherHistoryError, TaskOwnedError, UsageError
from tailrace.core.names import begun_group, moves_of, redriven_of, transactional_id, upgrades_of
from tailrace.core.records import CHANNEL
from tailrace.history.moving.copying import (
    BEGIN_AGAIN,
    Copied,
    CopyStatus,
    TopicCopy,
    copy_state,
    create_topic,
)
from tailrace.history.provenance.moves import Move, Step, check_lives_here, last_move, note_move
from tailrace.history.provenance.topics import abandoned_inputs, check_history
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.generations import located
from tailrace.history.reading.handed_over import note_handed_over, noted
from tailrace.history.retirement import publishers_of, reserved
from tailrace.log.interface import Placer, StoredLog, TopicPartition


class Moved(NamedTuple):
    """The result of a move. No topics: the apps were moved before. ``rows``: of the state."""

    apps: list[str]
    topics: list[Copied]
    rows: int


def move_apps(
    plans: Sequence[Plan],
    source: StoredLog,
    target: StoredLog,
    tell: Callable[[CopyStatus], None] | None = None,
) -> Moved:
    """Move apps; see the head of this file. Nothing is done if they were moved before.
    Raises UnknownTopicError, TaskOwnedError, OtherHistoryError or UsageError.
    """
    if source.identity == target.identity:
        raise OptionError("--from and --to are the same log", hint="Name another log to move to.")
    for plan in plans:
        AppHistory(plan, source)
        check_history(plan.app, source, plan.inputs)
    with stopped(plans, source):
        return Moving(plans, source, target, tell).run()


def give_up_move(plans: Sequence[Plan], source: StoredLog, target: StoredLog) -> None:
    """Let apps run on the source again whose move has not ended. On the target, copies stay that cannot run.
    Raises OtherHistoryError: an app has arrived on the target.
    """
    apps = [plan.app for plan in plans]
    for app in apps:
        if _has_arrived(app, source, target):
            raise OtherHistoryError(
                f"the app {app!r} lives on the target", why="log", hint="Move it back, from there."
            )
    arriving = [app for app in apps if is_at(target, app, "arriving", source)]
    if arriving:
        note_move(target, arriving, move_of("given up", source))
    left = [app for app in apps if is_at(source, app, "left", target)]
    if left:
        note_move(source, left, move_of("stayed", target))


class Moving:
    """The steps of a move."""

    def __init__(
        self,
        plans: Sequence[Plan],
        source: StoredLog,
        target: StoredLog,
        tell: Callable[[CopyStatus], None] | None,
    ) -> None:
        self._plans = [located(plan, source) for plan in plans]
        self._source, self._target, self._tell = source, target, tell
        self._apps = [plan.app for plan in plans]

    def run(self) -> Moved:
        """See ``move_apps``."""
        # What a process that was killed has left open is aborted here, and hides nothing from the copy.
        for plan in self._plans:
            for number in range(plan.partitions):
                self._source.writer(transactional_id(plan.app, number)).close()
        for app in self._apps:
            check_source(app, self._source, self._target)
        if all(_has_arrived(app, self._source, self._target) for app in self._apps):
            return Moved(self._apps, [], 0)
        self.check_writers()
        self._left = [abandoned_inputs(plan, self._source) for plan in self._plans]
        names = self._topics()
        if not all(is_at(self._target, app, "arriving", self._source) for app in self._apps):
            self.check_target(names)
        note_move(self._target, self._apps, move_of("arriving", self._source))
        with closing(self._target.placer(moves_of(self._apps[0]))) as placer:
            copy = TopicCopy(self._source, self._target, placer, names, self._tell)
            copy.catch_up()
            self._leave()
            copy.catch_up()
            rows = self._copy_state(placer)
            self._publish(names, placer)
        self._commit_positions()
        self._note_handed_over()
        self._compare_ends(names)
        note_move(self._target, self._apps, move_of("arrived", self._source))
        return Moved(self._apps, copy.report(), rows)

    # --- may it be moved?

    def check_target(self, names: Sequence[str]) -> None:
        """Refuse a target with records in the topics."""
        wanted = {*names, *(plan.changelog_topic for plan in self._plans)}
        there = [
            name
            for name, one in self._target.topics().items()
            if name in wanted
            and any(self._target.end_offset(name, number) for number in range(one.partitions))
        ]
        there += [moves_of(app) for app in self._apps if last_move(self._target, app) is not None]
        if there:
            raise OtherHistoryError(
                f"the target has records in {' and '.join(map(repr, there[:3]))}{' and others' if there[3:] else ''} already, and "
                "a move completes no other history",
                why="log",
                hint=f"If it is an interrupted 'tailrace migrate', run that again with the same apps. Else: {BEGIN_AGAIN}",
            )

    def check_writers(self) -> None:
        """Refuse to part an app from the writers of the topics that it follows."""
        followed = {
            one.name: plan.app
            for plan in self._plans
            for one in plan.inputs
            if one.watermark == "upstream" and not one.own
        }
        for app, tasks in publishers_of(self._source).items():
            if app in self._apps:
                continue
            for topic in sorted(
                {topic for said in tasks.values() for topic, mark in said.items() if mark is not None}
            ):
                if topic in followed:
                    raise UsageError(
                        f"the app {followed[topic]!r} follows {topic!r}, which the app {app!r} writes on the source",
                        hint=f"Move {app!r} in the same command (migrate --app). If it will not run again, retire it: tailrace retire {app}.",
                    )

    def _topics(self) -> list[str]:
        """All topics that are copied; changelogs are not."""
        changelogs = {plan.changelog_topic for plan in self._plans}
        known = self._source.topics()
        names = [name for plan in self._plans for name in topics_of(plan, self._source)]
        names += sorted({name for left in self._left for one in left.values() for name in one})
        names += [name for of in (redriven_of, upgrades_of) for name in map(of, self._apps) if name in known]
        return [name for name in dict.fromkeys(names) if name not in changelogs]

    def _leave(self) -> None:
        """From here on, the apps can be started on neither log."""
        before = all(is_at(self._source, app, "left", self._target) for app in self._apps)
        if not before:
            note_move(self._source, self._apps, move_of("left", self._target))
        if self._source.moves_tasks:  # a process may have started meanwhile
            try:
                with stopped(self._plans, self._source):
                    pass
            except TaskOwnedError:
                if not before:  # else the state may be on the target already
                    note_move(self._source, self._apps, move_of("stayed", self._target))
                raise

    def _copy_state(self, placer: Placer) -> int:
        rows = 0
        for plan, left in zip(self._plans, self._left, strict=True):
            topic = plan.changelog_topic
            create_topic(self._source, self._target, topic)
            for number, end in enumerate(self._source.ends([topic]).offsets[topic]):
                rows += copy_state(plan, number, self._source, self._target, placer, end, left[number])
        return rows

    def _publish(self, names: Sequence[str], placer: Placer) -> None:
        """Copy the publications of the moved apps, and of those that hold no reader back."""
        for topic in names:
            found = self._source.published(topic)
            last = {one.name: one.watermark_ms for one in found}
            moving = {
                name
                for name, mark in last.items()
                if mark is None or name.partition(CHANNEL)[0].rpartition("-")[0] in self._apps
            }
            if moving and not self._target.published(topic):
                placer.publish(topic, [one for one in found if one.name in moving])

    def _commit_positions(self) -> None:
        for plan in self._plans:
            places = [
                TopicPartition(one.name, number) for one in plan.inputs for number in range(plan.partitions)
            ]
            for group in (plan.app, begun_group(plan.app)):
                with closing(self._target.writer(moves_of(plan.app))) as writer:
                    writer.commit(self._source.committed_offsets(group, places), group)

    def _note_handed_over(self) -> None:
        """On the target, rows stand for the same records: they have the same offsets there."""
        now_ms = time.time_ns() // 1_000_000
        for plan in self._plans:
            inputs = [one.name for one in plan.inputs]
            for rows, before in noted(self._source, inputs).items():
                note_handed_over(self._target, rows, before, inputs, now_ms)

    def _compare_ends(self, names: Sequence[str]) -> None:
        for topic, ends in self._source.ends(names).offsets.items():
            for number, end in enumerate(ends):
                if (here := self._target.end_offset(topic, number)) != end:
                    raise OtherHistoryError(
                        f"{topic!r} partition {number} ends at {here} on the target, and at {end} on the source: something else has "
                        "written to it while it was copied",
                        why="log",
                        hint=f"Stop the producers. {BEGIN_AGAIN}"
                        if here > end
                        else "Run the same command again.",
                    )


def check_source(app: str, source: StoredLog, target: StoredLog) -> None:
    """Check that the app lives on the source, or is being moved from there to the target. Raises OtherHistoryError."""
    if not is_at(source, app, "left", target):
        check_lives_here(source, app)


def move_of(step: Step, other: StoredLog) -> Move:
    """The record of a step, with the other log."""
    return Move(step, other.identity.hex(), other.place)


def is_at(log: StoredLog, app: str, step: Step, other: StoredLog) -> bool:
    """Whether this is the last move of an app on a log."""
    found = last_move(log, app)
    return found is not None and (found.step, found.other) == (step, other.identity.hex())


def _has_arrived(app: str, source: StoredLog, target: StoredLog) -> bool:
    return is_at(source, app, "left", target) and is_at(target, app, "arrived", source)


@contextmanager
def stopped(plans: Sequence[Plan], log: StoredLog) -> Generator[None]:
    """Check that no process runs the apps on a log. Where tasks do not move, none can begin to, in the block.
    Raises TaskOwnedError: a process runs one of them.
    """
    with ExitStack() as held:
        for plan in plans:
            but = " on the source, and an app that runs is not moved"
            held.enter_context(reserved(log, plan.app, range(plan.partitions), but))
        yield
