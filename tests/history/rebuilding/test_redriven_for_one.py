"""A redriven event goes to the app whose dead letter it is, and to nobody else: each event counts once in
every app.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tailrace.core.engine.replay import Limits
from tailrace.history.dead_letters.letters import dead_letters
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots
from tailrace.testing.exploring.feed import feed_of_log
from tests.cli.commands import done as command
from tests.history.rebuilding import lived, sharing
from tests.history.rebuilding.lived import done, live
from tests.history.rebuilding.sharing import Order, counted, ids, late_of, originals

APPS = ("shop", "audit", "ledger")


def ref(app: str) -> str:
    return f"tests.history.rebuilding.sharing:{app}"


class World:
    """A log with the topic that all apps read."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch, self._ids = folder, patch, 0

    def order(self, random: Random, count: int, start: int) -> None:
        found = []
        for _ in range(count):
            start += random.randint(0, 9)
            self._ids += 1
            cents = random.choice((7, 13, 14, *range(1, 7)))
            at = start - random.choice((0, 0, 30))
            found.append(sharing.record(Order(random.choice("abcdef"), at, cents, self._ids)))
        lived.append(self.folder, found, {"orders": 2})

    def live(self, *apps: str, broken: tuple[str, ...] = (), **options: Any) -> None:
        self._patch.setenv("SHARING_BROKEN", " ".join(broken))
        for app in apps:
            lived.live_on(self.folder, ref(app), **options)

    def redrive(self, app: str, wanted: Any = lambda _: True) -> int:
        return lived.close(self.folder, app, "redriven", wanted)

    def letters(self, app: str) -> list[str]:
        with closing(EmbeddedLog(self.folder / "log")) as log:
            return [one.id for one in dead_letters(log, app)]

    def records(self) -> list[list[Any]]:
        with closing(EmbeddedLog(self.folder / "log")) as log:
            return [list(scan(log, "orders", number)) for number in range(2)]

    def expected(self) -> dict[str, list[int]]:
        return counted(one for part in self.records() for one in originals(part))

    def of_service(self, app: str) -> dict[str, list[int]]:
        return ids(live(self.folder, find_app(ref(app)).plan()))

    def replay(self, app: str) -> int:
        """Compare the replay of an app with what it has done; how many records it has passed over."""
        with closing(EmbeddedLog(self.folder / "log")) as log:
            report = replay(find_app(ref(app)).plan(), log, ReplayOptions(compare=True, any_environment=True))
            assert not report.differences.count, report.differences
            return report.for_others


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def lived_through(world: World, random: Random) -> None:
    """Some events failed once, some twice, some in both apps; then the code is corrected, and all is
    redriven.
    """
    world.order(random, 60, 1_000)
    world.live(*APPS, broken=("shop", "audit"))
    some = {one for one in world.letters("shop") if random.random() < 0.5}
    assert world.redrive("shop", lambda one: one.id in some)
    world.live("shop", broken=("shop",))  # they fail again
    world.order(random, 20, 1_200)
    world.live("audit", "ledger", broken=("audit",))
    for app in ("shop", "audit"):
        assert world.redrive(app)
    world.order(random, 20, 1_300)
    world.live(*APPS)
    assert not world.redrive("shop"), "every letter was redriven"


@pytest.mark.one_seed_in(200)  # it runs some twenty rebuilds: 7 s
def test_each_event_counts_once_in_every_app_however_it_is_run(world: World, seeds: range) -> None:
    random = Random(seeds[0])
    lived_through(world, random)
    wanted, records = world.expected(), world.records()
    passed_over = {app: sum(1 for part in records for one in part if not _is_for(one, app)) for app in APPS}
    assert all(passed_over.values())
    redriven = sum(sharing.is_redriven(one) for part in records for one in part)
    ends = Limits({"orders": {number: len(part) for number, part in enumerate(records)}})
    for app in APPS:
        assert world.of_service(app) == wanted, app
        assert world.replay(app) == passed_over[app]
        for order, until in (("tape", Limits()), ("canonical", Limits()), ("canonical", ends)):
            report, snapshot = done(world.folder, ref(app), order=order, until=until)
            assert ids(lived.rebuilt(snapshot)) == wanted, (app, order)
            skipped = passed_over[app] if order == "tape" else redriven
            assert report.for_others == skipped
            assert any(f"{skipped} redriven records skipped" in one for one in report.notes)
    report, snapshot = done(world.folder, ref("fresh"))
    assert (report.order, ids(lived.rebuilt(snapshot))) == ("canonical", wanted)
    assert report.for_others == redriven
    assert report.late == sum(late_of(originals(part)) for part in records)
    world.live("fresh")
    assert world.of_service("fresh") == wanted
    assert world.replay("fresh") == report.for_others
    status = command("status", ref("fresh"), "--log", world.folder / "log").out
    assert f"{report.for_others} records redriven for other apps, skipped" in status
    with closing(EmbeddedLog(world.folder / "log")) as log:
        for app in (*APPS, "fresh"):
            feed = feed_of_log(find_app(ref(app)).plan(), log)
            fed = [one.record for some in feed.places.values() for one in some]
            assert counted(originals(fed)) == wanted
            assert feed.count + feed.redriven == sum(map(len, records))
            assert feed.count == len(originals(fed)), "the originals are run, and nothing twice"


def _is_for(record: Any, app: str) -> bool:
    said = [value for name, value in record.headers if name == "tailrace-redriven"]
    return not said or said[-1].startswith(f"{app}.".encode())


@pytest.mark.one_seed_in(100)  # one takes 1.7 s
def test_a_copy_counts_each_event_once(world: World, seeds: range) -> None:
    """What had failed before they part goes to both; what fails in one of them afterwards, to that one."""
    random = Random(seeds[0])
    world.order(random, 60, 1_000)
    world.live("shop", broken=("shop",))
    before = {one for one in world.letters("shop") if random.random() < 0.5}
    base = str(world.folder / "snapshots")
    done(world.folder, ref("shop"))
    world.order(random, 20, 1_200)
    world.live("shop", broken=("shop",))
    after = set(world.letters("shop")) - before
    world.live("shop@copy", from_snapshot=base)  # its code is right
    failed = {one: world.of_service(one) for one in ("shop", "shop@copy")}
    assert failed["shop"] != failed["shop@copy"]
    assert world.redrive("shop", lambda one: one.id in after)
    world.order(random, 20, 1_300)
    world.live("shop", "shop@copy", broken=("shop",))  # in both it fails again, if it comes there
    assert world.redrive("shop")
    assert world.redrive("copy")
    world.live("shop", "shop@copy")
    wanted = world.expected()
    for app in ("shop", "shop@copy", "shop@other"):
        if app != "shop@other":
            assert world.of_service(app) == wanted, app
            assert world.replay(app) >= 0
            _, snapshot = done(world.folder, ref(app), order="tape")
            assert ids(lived.rebuilt(snapshot)) == wanted, app
        _, snapshot = done(world.folder, ref(app), order="canonical")
        assert ids(lived.rebuilt(snapshot)) == wanted, app


def test_a_copy_passes_over_what_the_rebuild_that_it_began_with_has_handled(world: World) -> None:
    """The letters of the old app are redriven all the same, for the old app."""
    world.order(Random(1), 60, 1_000)
    world.live("shop", broken=("shop",))
    world.live()
    base = str(world.folder / "snapshots")
    report, snapshot = done(world.folder, ref("shop"), order="canonical")
    assert any("open dead letters are handled in their places" in one for one in report.notes)
    wanted = world.expected()
    assert ids(lived.rebuilt(snapshot)) == wanted
    world.redrive("shop", lambda one: one.partition == 0)
    world.live("shop@copy", from_snapshot=base)
    world.redrive("shop")
    world.live("shop", "shop@copy")
    assert world.of_service("shop") == world.of_service("shop@copy") == wanted
    world.replay("shop@copy")
    assert Snapshots(base, "shop").open("latest").manifest.id == snapshot.manifest.id
