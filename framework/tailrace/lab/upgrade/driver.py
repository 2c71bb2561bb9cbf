"""An upgrade: the two versions, what is refused, the plan, and how it is given up. ``steps`` has the steps."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing

import msgspec
from msgspec.structs import replace

from tailrace.core.errors import OptionError, UnknownTopicError
from tailrace.core.names import tape_of, upgrades_of
from tailrace.history.reading.upgrades import Upgrade, last_upgrade
from tailrace.history.rebuilding.engines import Where
from tailrace.history.rebuilding.planning import RebuildPlan
from tailrace.lab.upgrade.steps import Say, Sides, Steps, UpgradeReport
from tailrace.lab.versions import About, Version, placed
from tailrace.log.interface import TopicSettings
from tailrace.log.opening import open_log
from tailrace.state.snapshots import Place


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which version replaces which, on which log."""

    old: str
    new: str
    log: str
    snapshots: str
    rollback: bool = False
    where: Where = Where()


class UpgradePlan(msgspec.Struct, kw_only=True):
    """What an upgrade would do."""

    app: str
    old: str
    new: str
    changes: list[str]
    rebuild: RebuildPlan | None

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.app}: version {self.old} to version {self.new}",
            *(f"  {one}" for one in self.changes),
            *([] if self.rebuild is None else self.rebuild.lines()),
        ]


class Upgrading:
    """An upgrade of ``wanted``. The processes of the versions end with ``stack``."""

    def __init__(self, wanted: Wanted, stack: ExitStack, say: Say = lambda _: None) -> None:
        self._wanted, self._say = wanted, say
        places = [placed(one, stack) for one in (wanted.old, wanted.new)]
        if wanted.rollback:
            places.reverse()
        old, new = (
            Version(name, one)
            for name, one in zip(("the version that runs", "the new one"), places, strict=True)
        )
        for one in (old, new):
            stack.callback(one.close)
        old_is, new_is = (one.ask("about", About, reference=one.place.reference) for one in (old, new))
        log = stack.enter_context(closing(open_log(wanted.log)))
        uri = Place.at(wanted.snapshots).uri
        self._sides = Sides(old, new, old_is, new_is, log, wanted.log, uri, wanted.where)
        self.app = old_is.app
        self._check()

    def _check(self) -> None:
        """Refuse what no upgrade can do."""
        old, new, log = self._sides.old_is, self._sides.new_is, self._sides.log
        if old.app != new.app:
            raise OptionError(
                f"these are not versions of one app: the first is {old.app!r}, the other {new.app!r}",
                hint="Name two versions of one app.",
            )
        if old.version == new.version:
            raise OptionError(
                f"both are version {old.version!r} of {old.app!r}, so nobody could tell which one may run",
                hint='Give the new code another version: App(..., version="2").',
            )
        if old.partitions != new.partitions:
            raise OptionError(
                f"{old.app!r} has {old.partitions} partitions in one version, and {new.partitions} in the other",
                hint="Keep their number.",
            )
        if gone := sorted({*old.inputs} - {*new.inputs}):
            raise OptionError(
                f"version {new.version!r} does not read {' and '.join(map(repr, gone))}, which {old.version!r} reads",
                hint="Keep the input for this upgrade; to leave it, stop the app and run it with --change-inputs.",
            )
        if tape_of(self.app) not in log.topics():
            raise UnknownTopicError(
                f"the app {self.app!r} has never run on this log, so there is nothing to upgrade",
                hint="Start the new version.",
            )

    def plan(self) -> UpgradePlan:
        """What would be done. Raises what ``run`` raises before it begins."""
        self._state()
        old, new, rebuild = self._sides.old_is, self._sides.new_is, None
        if not self._wanted.rollback:
            request = self._sides.request("auto", None)
            rebuild = self._sides.new.ask("planned", RebuildPlan, request=request)
        return UpgradePlan(
            app=self.app, old=old.version, new=new.version, changes=[*_changes(old, new)], rebuild=rebuild
        )

    def run(self, reached: Say = lambda _: None) -> UpgradeReport:
        """Upgrade; ``reached``: see ``Steps``. Raises OptionError, and what a rebuild raises."""
        old, new, log = self._sides.old_is.version, self._sides.new_is.version, self._sides.log
        done = last_upgrade(log, self.app)
        if done is not None and (done.step, done.old, done.new) == ("done", old, new):
            return UpgradeReport(app=self.app, old=old, new=new)
        upgrade, before = self._state(), self._previous()
        log.create_topic(upgrades_of(self.app), TopicSettings(1))
        with closing(log.writer(upgrades_of(self.app))) as writer:
            return Steps(self._sides, upgrade, before, writer, self._say, reached).run()

    def cancel(self) -> bool:
        """Give up an upgrade that is open. Returns whether there was one. Raises OptionError: it is too late."""
        found = last_upgrade(self._sides.log, self.app)
        if found is None or not found.is_open:
            return False
        if found.step == "ready":
            raise OptionError(
                f"version {found.new!r} may have begun",
                hint="Run the command again to the end, and return with --rollback.",
            )
        before = self._previous() if found.rollback else None
        with closing(self._sides.log.writer(upgrades_of(self.app))) as writer:
            Steps(self._sides, found, before, writer, self._say, self._say).give_up()
        return True

    def _previous(self) -> Upgrade | None:
        """For a rollback, the upgrade that it takes back. Raises OptionError: there is none."""
        if not self._wanted.rollback:
            return None
        found = last_upgrade(self._sides.log, self.app, "done")
        old, new = self._sides.old_is.version, self._sides.new_is.version
        if found is None or (found.old, found.new) != (new, old):
            raise OptionError(
                f"the last upgrade of {self.app!r} was not from version {new!r} to {old!r}",
                hint="Only the last upgrade can be rolled back: name its two versions in the same order.",
            )
        return found

    def _state(self) -> Upgrade:
        """The upgrade as far as it has come; a new one if none is open. Raises OptionError: another one is open."""
        found, new = last_upgrade(self._sides.log, self.app), self._sides.new_is
        current, used = (0, 0) if found is None else (found.current, max(found.before, found.generation))
        mine = Upgrade(
            step="begun",
            id=secrets.token_hex(4),
            old=self._sides.old_is.version,
            new=new.version,
            rollback=self._wanted.rollback,
            snapshots=self._sides.uri,
            code=new.code,
            before=current,
            generation=used + 1,
            replaced=() if found is None else found.replaced_now,
        )
        if found is None or not found.is_open:
            if mine.old in mine.replaced:
                raise OptionError(
                    f"version {mine.old!r} of {self.app!r} is not the one that runs: an upgrade has replaced it",
                    hint="Name the version that runs as the old one.",
                )
            if self._previous() is None:
                self._sides.new.ask("check_beginning", type(None), log=self._wanted.log)
            return mine
        same = replace(found, **{one: getattr(mine, one) for one in ("old", "new", "rollback", "snapshots")})
        if same != found:
            raise OptionError(
                f"another upgrade of {self.app!r} is under way: {_shown(found)}",
                hint="Run its command again, or give it up with --cancel.",
            )
        if found.code != new.code and found.step != "ready":
            raise OptionError(
                "the code of the new version has changed since the upgrade was begun",
                hint="Give it up with --cancel, and begin again.",
            )
        return found


def _shown(one: Upgrade) -> str:
    back = "back " if one.rollback else ""
    return f"{back}from version {one.old!r} to {one.new!r}, with snapshots in {Place.at(one.snapshots).shown}"


def _changes(old: About, new: About) -> Iterator[str]:
    """What the declarations tell."""
    for actor, fields in new.fields.items():
        before = old.fields.get(actor)
        if before is None:
            yield f"a new actor: {actor}"
            continue
        yield from (f"a new field: {actor}.{name}" for name in fields if name not in before)
        yield from (
            f"a changed field: {actor}.{name}"
            for name in fields
            if before.get(name, fields[name]) != fields[name]
        )
        yield from (f"no longer declared: {actor}.{name}" for name in before if name not in fields)
    yield from (f"no longer declared: {actor}" for actor in old.fields if actor not in new.fields)
    yield from (f"a new input: {name}" for name in new.inputs if name not in old.inputs)
