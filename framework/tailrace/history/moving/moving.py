"""Moves apps from one log to another. This file has the order of the steps.

Theory. A move makes the target the log on which the history of the apps continues. All that refers to the history stays valid, as
every record keeps its offset (``copying``). An app lives on one log at any time (``residence``). Each step depends on the one before::

    1  nobody runs the apps on the source     else it is refused; with ``prepare`` it may run, and only steps 2 to 4 are done. Their
                                              transactional ids are taken over, which ends what a killed process has left open
    2  the target may have them               not if it has a history of its own, or if another app that runs on the source
                                              writes what they follow: they would wait for its watermarks
    3  ``arriving`` on the target             from here on they cannot be started there
    4  the topics are copied                  this may take long; problems with records or settings are found here
    5  ``left`` on the source                 from here on they cannot be started there. A process that has looked before this is
                                              looked for again
    6  the rest is copied                     what came since the copy, up to ends that are final
    7  state, watermarks, positions           the rows and the cut of each task are one commit
    8  both logs are compared                 with ``check``; a difference ends the move here
    9  ``arrived`` on the target              from here on they can be started there

A move that is killed continues with the same command: topics where the target's end, the other steps are repeated. Apps that follow
each other's topics move together, or the one whose topics are followed first.

What is not moved: consumer groups of others, state folders (a service restores from the changelog, or uses a folder that is a copy),
snapshots and archives (they remain valid for both logs), and the retention of topics that exist on the target.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.errors import AppMovedError, OptionError, TaskOwnedError, UsageError
from tailrace.core.records import CHANNEL
from tailrace.history.app_history import AppHistory
from tailrace.history.app_topics import begun_group, topics_of
from tailrace.history.dead_letters.letters import redriven_topic
from tailrace.history.left_inputs import left_by, still_there
from tailrace.history.moving.copying import Copied, CopyStatus, TopicCopy, copy_changelog
from tailrace.history.moving.log_differences import Compared, Left, compare_logs
from tailrace.history.moving.residence import Move, Step, last_move, moves_topic, note_move
from tailrace.history.retirement import publishers_of, refuse_members
from tailrace.history.same_topics import check_history
from tailrace.history.stretches import last
from tailrace.history.upstream_watermarks import transactional_id
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import Placer, PublishedAt, StoredLog, TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.processes.task_ownership import TaskOwnership


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """What a move does."""

    history: bool = True
    """Copy all records; otherwise those alone that the apps have not read yet, and dead letters."""
    prepare: bool = False
    """Only copy what is there, while the apps may run. A later move has less to copy."""
    check: bool = False
    """Compare both logs before the apps may run on the target."""


class Moved(NamedTuple):
    """The result of a move. ``is_done``: the apps live on the target. ``state_records``: written to changelogs by this run."""

    apps: list[str]
    is_done: bool
    topics: list[Copied]
    state_records: int
    compared: Compared | None


def move_apps(
    plans: Sequence[Plan],
    source: StoredLog,
    target: StoredLog,
    options: MoveOptions,
    tell: Callable[[CopyStatus], None] | None = None,
) -> Moved:
    """Move apps; see the head of this file. If they were moved before, this only compares, if asked.

    Raises:
        UnknownTopicError: An app has never run on the source.
        TaskOwnedError: An app runs on the source.
        AppMovedError: The target has another history of an app, or the app lives on a third log.
        UsageError: Both are one log, or an app is missing that the others follow.
    """
    return _Moving(plans, source, target, options, tell).run()


def give_up_move(plans: Sequence[Plan], source: StoredLog, target: StoredLog) -> None:
    """Let apps run on the source again whose move has not ended. Copies stay on the target; nothing can be started there.

    Raises:
        AppMovedError: An app has arrived on the target.
    """
    for plan in plans:
        if _has_arrived(plan.app, source, target):
            raise AppMovedError(
                f"the app {plan.app!r} lives on the target", hint="Move it back, from there to here."
            )
    for plan in plans:
        if (found := last_move(source, plan.app)) is not None and found.step == "left":
            note_move(source, plan.app, Move("stayed", target.identity.hex(), target.place))


class _Moving:
    def __init__(
        self,
        plans: Sequence[Plan],
        source: StoredLog,
        target: StoredLog,
        options: MoveOptions,
        tell: Callable[[CopyStatus], None] | None,
    ) -> None:
        self._plans, self._source, self._target = plans, source, target
        self._options, self._tell = options, tell
        self._apps = [plan.app for plan in plans]
        self._left = [Left() for _ in plans]

    def run(self) -> Moved:
        """See ``move_apps``."""
        if self._source.identity == self._target.identity:
            raise OptionError("--from and --to are the same log", hint="Name another log to move to.")
        for plan in self._plans:
            AppHistory(plan, self._source)
            check_history(plan.app, self._source, plan.inputs)
        if self._options.prepare:
            self._check()
            names = self._topics()
            with self._placer() as placer:
                copy = self._copy(names, placer)
                copy.catch_up()
            return Moved(self._apps, False, copy.report(), 0, None)
        with stopped(self._plans, self._source):
            return self._moved()

    def _moved(self) -> Moved:
        # What a process that was killed has left open is aborted here, and hides nothing from the copy.
        for plan in self._plans:
            for number in range(plan.partitions):
                self._source.writer(transactional_id(plan.app, number)).close()
        self._check()
        names = self._topics()
        if all(_has_arrived(app, self._source, self._target) for app in self._apps):
            compared = self._compare(names) if self._options.check else None
            return Moved(self._apps, True, [], 0, compared)
        with self._placer() as placer:
            copy = self._copy(names, placer)
            copy.catch_up()
            self._leave()
            copy.catch_up()
            written = self._copy_state(placer)
            self._publish(names, placer)
            self._commit_positions()
            topics = copy.report()
        compared = self._compare(names) if self._options.check else None
        done = compared is None or not compared.differences
        if done:
            for app in self._apps:
                note_move(self._target, app, self._move("arrived"))
        return Moved(self._apps, done, topics, written, compared)

    # --- may it be moved?

    def _check(self) -> None:
        for plan in self._plans:
            left, arrived = last_move(self._source, plan.app), last_move(self._target, plan.app)
            if left is not None and left.step == "arriving":
                raise AppMovedError(
                    f"the app {plan.app!r} has not arrived on the source yet: it is being moved there from {left.place}",
                    hint="End that move first.",
                )
            if left is not None and left.step == "left" and left.other != self._target.identity.hex():
                raise AppMovedError(
                    f"the app {plan.app!r} was moved from the source to {left.place}",
                    hint="Move it from there.",
                )
            lives_there = arrived is None or arrived.step in ("arrived", "stayed")
            if (
                lives_there
                and plan.tape_topic in self._target.topics()
                and not _has_arrived(plan.app, self._source, self._target)
            ):
                raise AppMovedError(
                    f"the target has an app {plan.app!r} of its own",
                    hint="An app has one history. Use another prefix or log, or delete the topics of that app.",
                )
        self._check_writers()

    def _check_writers(self) -> None:
        """Refuse to part an app from the writers of the topics that it follows."""
        here = publishers_of(self._target)
        followed = {
            one.name: plan.app
            for plan in self._plans
            for one in plan.inputs
            if one.watermark == "upstream" and not one.own
        }
        for app, tasks in publishers_of(self._source).items():
            if app in self._apps or app in here:
                continue
            for topic in sorted(
                {topic for said in tasks.values() for topic, mark in said.items() if mark is not None}
            ):
                if topic in followed:
                    raise UsageError(
                        f"the app {followed[topic]!r} follows {topic!r}, which the app {app!r} writes on the source",
                        hint=f"Move {app!r} too (--app), or before. If it will not run again, retire it: tailrace retire {app}.",
                    )

    def _inputs_left(self, plan: Plan) -> Left:
        """By task, where it has left inputs that are still there."""
        left = {number: left_by(plan, self._source, number) for number in range(plan.partitions)}
        same = still_there(plan.app, self._source, {name for one in left.values() for name in one})
        return {
            number: {name: at for name, at in one.items() if name in same} for number, one in left.items()
        }

    def _topics(self) -> list[str]:
        """All topics that are copied; changelogs are not."""
        self._left = [self._inputs_left(plan) for plan in self._plans]
        changelogs = {plan.changelog_topic for plan in self._plans}
        known = self._source.topics()
        names = [name for plan in self._plans for name in topics_of(plan, self._source)]
        names += sorted({name for app in self._left for one in app.values() for name in one})
        names += [redriven_topic(app) for app in self._apps if redriven_topic(app) in known]
        return [name for name in dict.fromkeys(names) if name not in changelogs]

    # --- the steps

    @contextmanager
    def _placer(self) -> Generator[Placer]:
        for app in self._apps:
            note_move(self._target, app, self._move("arriving"))
        placer = self._target.placer(moves_topic(self._apps[0]))
        try:
            yield placer
        finally:
            placer.close()

    def _move(self, step: Step) -> Move:
        other = self._target if step == "left" else self._source
        return Move(step, other.identity.hex(), other.place)

    def _copy(self, names: Sequence[str], placer: Placer) -> TopicCopy:
        return TopicCopy(self._source, self._target, placer, names, self._begin, self._is_of_app, self._tell)

    def _begin(self, place: TopicPartition, end: int) -> int:
        """Where a partition begins that the target does not have yet."""
        start = self._source.start_offset(*place)
        if self._options.history:
            return start
        if any(place.topic == plan.tape_topic for plan in self._plans):
            found = last(self._source, *place)  # it has the identity of the last commit
            return end if found is None else found.offset
        if any(place.topic in (plan.dead_letters_topic, redriven_topic(plan.app)) for plan in self._plans):
            return start
        return max(start, min(self._unread(place), default=end))

    def _unread(self, place: TopicPartition) -> Iterable[int]:
        """The positions of the apps that read a partition."""
        for plan, left in zip(self._plans, self._left, strict=True):
            if place.topic in _read(plan, left):
                cut = AppHistory(plan, self._source).committed(place.partition).cut
                positions = {} if cut is None else tape.decode_cut(cut).positions
                positions = {**left.get(place.partition, {}), **positions}
                begun = self._source.committed_offsets(begun_group(plan.app), [place])
                yield positions.get(place.topic, begun.get(place, 0))

    def _is_of_app(self, topic: str) -> bool:
        return any(topic.startswith(f"{app}.") for app in self._apps)

    def _leave(self) -> None:
        """From here on, the apps can be started on neither log."""
        for app in self._apps:
            note_move(self._source, app, self._move("left"))
        if isinstance(self._source, KafkaLog):
            try:
                _check_stopped(self._plans, self._source)
            except TaskOwnedError:
                give_up_move(self._plans, self._source, self._target)
                raise

    def _copy_state(self, placer: Placer) -> int:
        written = 0
        for plan, left in zip(self._plans, self._left, strict=True):
            topic = plan.changelog_topic
            self._target.create_topic(topic, self._source.topics()[topic])
            for number, end in enumerate(self._source.ends([topic]).offsets[topic]):
                written += copy_changelog(plan, number, self._source, self._target, placer, end, left[number])
        return written

    def _publish(self, names: Sequence[str], placer: Placer) -> None:
        for topic in names:
            here: dict[str, list[PublishedAt]] = {}
            for one in self._target.published(topic):
                here.setdefault(one.name, []).append(one)
            found = self._source.published(topic)
            last_of = {one.name: one for one in found}
            new: list[PublishedAt] = []
            for name, last_one in last_of.items():
                there = here.get(name, [])
                if self._moves_with(name, last_one, there):
                    new += _not_there([one for one in found if one.name == name], there)
            if new:
                chosen = {id(one) for one in new}
                placer.publish(topic, [one for one in found if id(one) in chosen])

    def _moves_with(self, name: str, last_one: PublishedAt, there: Sequence[PublishedAt]) -> bool:
        """Whether the publications of a publisher are copied: of the moved apps, and of those that hold no reader back. An app that was
        moved before, and retired here since, may run on the target: then its own publications count there.
        """
        if name.partition(CHANNEL)[0].rpartition("-")[0] in self._apps:
            return True
        return last_one.watermark_ms is None and (not there or there[-1].watermark_ms is None)

    def _commit_positions(self) -> None:
        for plan, left in zip(self._plans, self._left, strict=True):
            places = [
                TopicPartition(name, number)
                for name in _read(plan, left)
                for number in range(plan.partitions)
            ]
            of_left = {
                TopicPartition(name, number): at for number, one in left.items() for name, at in one.items()
            }
            begun: dict[TopicPartition, int] = {}
            for group, known in (
                (plan.app, of_left | self._without_notes(plan)),
                (begun_group(plan.app), begun),
            ):
                offsets = {**self._source.committed_offsets(group, places), **known}
                writer = self._target.writer(moves_topic(plan.app))
                try:
                    writer.commit(offsets, group)
                finally:
                    writer.close()

    def _without_notes(self, plan: Plan) -> dict[TopicPartition, int]:
        """Committing these deletes the notes that the group has of an earlier stay, see ``runtime.task_notes``."""
        if not isinstance(self._target, KafkaLog):
            return {}
        return {TopicPartition(plan.tape_topic, number): 0 for number in range(plan.partitions)}

    def _compare(self, names: Sequence[str]) -> Compared:
        return compare_logs(self._plans, self._source, self._target, names, self._left)


def _read(plan: Plan, left: Left) -> set[str]:
    """The inputs that an app reads, and those that it has left."""
    return {*(one.name for one in plan.inputs), *(name for of_task in left.values() for name in of_task)}


def _not_there(source: list[PublishedAt], target: list[PublishedAt]) -> list[PublishedAt]:
    """The publications of a publisher that the target does not have: those after its last one there."""
    if not target:
        return source
    watermark_ms, ends = target[-1].watermark_ms, list(target[-1].ends)
    for at in range(len(source) - 1, -1, -1):
        if source[at].watermark_ms == watermark_ms and list(source[at].ends) == ends:
            return source[at + 1 :]
    # The ends differ a little between kinds of logs.
    later = [one for one in source if any(end > before for end, before in zip(one.ends, ends, strict=True))]
    if later or source[-1].watermark_ms == watermark_ms:
        return later
    return source[-1:]


def _has_arrived(app: str, source: StoredLog, target: StoredLog) -> bool:
    """Whether an app has left the source for the target, and arrived there."""
    left, arrived = last_move(source, app), last_move(target, app)
    return (
        left is not None
        and (left.step, left.other) == ("left", target.identity.hex())
        and arrived is not None
        and (arrived.step, arrived.other) == ("arrived", source.identity.hex())
    )


@contextmanager
def stopped(plans: Sequence[Plan], log: StoredLog) -> Generator[None]:
    """See that no process runs the apps on a log. On the embedded log none can begin to, inside the block.

    Raises:
        TaskOwnedError: A process runs one of them.
    """
    if isinstance(log, KafkaLog):
        _check_stopped(plans, log)
        yield
        return
    assert isinstance(log, EmbeddedLog)
    with ExitStack() as held:
        for plan in plans:
            held.callback(_owned(plan, log).release)
        yield


def _owned(plan: Plan, log: EmbeddedLog) -> TaskOwnership:
    try:
        return TaskOwnership(log.path, plan.app, range(plan.partitions), from_stopped=False)
    except TaskOwnedError as error:
        raise _runs(plan.app, error.what) from None


def _check_stopped(plans: Collection[Plan], log: KafkaLog) -> None:
    for plan in plans:
        try:
            refuse_members(log, plan.app)
        except TaskOwnedError as error:
            raise _runs(plan.app, error.what) from None


def _runs(app: str, why: str) -> TaskOwnedError:
    return TaskOwnedError(
        f"the app {app!r} runs on the source, and an app that runs is not moved: {why}",
        hint="Stop it first. To copy most of its history before that, use --prepare.",
    )
