"""Redriven records count once in a rebuild: in every app that reads them, for each operator, and also where the app sends to itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.replay import Limits
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.dead_letters.letters import dead_letters
from tailrace.history.moving.reshaping import reshape
from tailrace.history.reading.stretches import scan
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots
from tailrace.testing.exploring.feed import feed_of_log
from tests.history.rebuilding import any_app, lived, sharing
from tests.history.rebuilding.lived import done, fields, live, rebuilt
from tests.history.rebuilding.priced import Order, Price, Sum, record
from tests.history.rebuilding.sharing import counted, ids, late_of, originals

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
            found.append(sharing.record(sharing.Order(random.choice("abcdef"), at, cents, self._ids)))
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

    def ids_of_letters(self, app: str) -> set[int]:
        with closing(EmbeddedLog(self.folder / "log")) as log:
            values = [one.record.value or b"" for one in dead_letters(log, app)]
            return {msgspec.json.decode(one, type=sharing.Order).id for one in values}

    def records(self) -> list[list[Any]]:
        with closing(EmbeddedLog(self.folder / "log")) as log:
            return [list(scan(log, "orders", number)) for number in range(2)]

    def expected(self) -> dict[str, list[int]]:
        return counted(one for part in self.records() for one in originals(part))

    def of_service(self, app: str) -> dict[str, list[int]]:
        return ids(live(self.folder, find_app(ref(app)).plan()))

    def replay(self, app: str) -> None:
        """Compare the replay of an app with what it has done."""
        with closing(EmbeddedLog(self.folder / "log")) as log:
            report = replay(find_app(ref(app)).plan(), log, ReplayOptions(compare=True, any_environment=True))
            assert not report.differences.count, report.differences


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
    ends = Limits({"orders": {number: len(part) for number, part in enumerate(records)}})
    for app in APPS:
        assert world.of_service(app) == wanted, app
        world.replay(app)
        for order, until in (("tape", Limits()), ("stages", Limits()), ("stages", ends)):
            _, snapshot = done(world.folder, ref(app), order=order, until=until)
            assert ids(lived.rebuilt(snapshot)) == wanted, (app, order)
    report, snapshot = done(world.folder, ref("fresh"))
    assert (report.order, ids(lived.rebuilt(snapshot))) == ("stages", wanted)
    assert report.late == sum(late_of(originals(part)) for part in records)
    world.live("fresh")
    assert world.of_service("fresh") == wanted
    world.replay("fresh")
    with closing(EmbeddedLog(world.folder / "log")) as log:
        for app in (*APPS, "fresh"):
            feed = feed_of_log(find_app(ref(app)).plan(), log)
            fed = [one.record for some in feed.places.values() for one in some]
            assert counted(originals(fed)) == wanted
            assert feed.count == sum(map(len, records))


@pytest.mark.one_seed_in(100)  # one takes 1.7 s
def test_a_copy_misses_what_had_failed_before_it_and_says_so(
    world: World, seeds: range, caplog: pytest.LogCaptureFixture
) -> None:
    """A redrive reaches the app that failed only; what fails in one of them afterwards is redriven there."""
    random = Random(seeds[0])
    world.order(random, 60, 1_000)
    world.live("shop", broken=("shop",))
    missing = world.ids_of_letters("shop")
    assert missing
    base = str(world.folder / "snapshots")
    done(world.folder, ref("shop"))
    world.order(random, 20, 1_200)
    world.live("shop", broken=("shop",))
    some = {one for one in world.letters("shop") if random.random() < 0.5}
    assert world.redrive("shop", lambda one: one.id in some)
    world.live("shop@copy", from_snapshot=base)  # its code is right
    told = [one.args for one in caplog.records if "failed before the snapshot" in one.msg]
    assert sum(int(str(said[0]).split()[0]) for said in told if isinstance(said, tuple)) == len(missing)
    world.order(random, 20, 1_300)
    world.live("shop", "shop@copy", broken=("shop",))
    assert world.redrive("shop")
    world.redrive("copy")
    world.live("shop", "shop@copy")
    wanted = world.expected()
    part = {who: [one for one in some if one not in missing] for who, some in wanted.items()}
    for app, expected in (("shop", wanted), ("shop@copy", {who: some for who, some in part.items() if some})):
        assert world.of_service(app) == expected, app
        world.replay(app)
        _, snapshot = done(world.folder, ref(app), order="tape")
        assert ids(lived.rebuilt(snapshot)) == expected, app
    for app in ("shop", "shop@copy", "shop@other"):
        _, snapshot = done(world.folder, ref(app), order="stages")
        assert ids(lived.rebuilt(snapshot)) == wanted, app


def test_a_copy_passes_over_what_the_rebuild_that_it_began_with_has_handled(world: World) -> None:
    """The letters of the old app are redriven all the same, for the old app."""
    world.order(Random(1), 60, 1_000)
    world.live("shop", broken=("shop",))
    world.live()
    base = str(world.folder / "snapshots")
    report, snapshot = done(world.folder, ref("shop"), order="stages")
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


BROKEN: set[str] = set()
"""The actors that fail at an order of 13 cents."""


class Bought(msgspec.Struct, frozen=True):
    who: tr.Key[str]
    at: tr.EventTime[int]
    cents: int


def made(second: str) -> str:
    """Two actors that sum up the same orders; the first one is ordered."""
    app = tr.App("two-sums", partitions=1, on_error="dead-letter")
    orders = app.topic("orders", Bought)
    for name, order in (("first", "event-time"), ("second", second)):
        _summing(app, orders, name, order)
    return any_app.place(app)


def _summing(app: tr.App, orders: Any, name: str, order: Any) -> None:
    @app.actor(name=name)
    class Sum(tr.Actor, order=order):
        cents: int = 0

        @tr.process(orders)
        def bought(self, event: Bought, ctx: tr.Context[str]) -> None:
            if event.cents == 13 and name in BROKEN:
                raise ValueError("bad luck")
            self.cents += event.cents


@pytest.mark.parametrize("second", ["event-time", "arrival"])
@pytest.mark.parametrize(
    ("broken", "redriven"),
    [
        ({"first"}, {"first"}),
        ({"first", "second"}, set[str]()),
        ({"first", "second"}, {"first"}),
        ({"first", "second"}, {"second"}),
    ],
)
def test_each_operator_handles_a_record_once_whichever_of_them_had_failed(
    tmp_path: Path, second: str, broken: set[str], redriven: set[str]
) -> None:
    app = made(second)
    records = [Bought("ab"[n % 2], 1_000 + n, 13 if n % 5 == 2 else n) for n in range(20)]
    outputs = [Output("orders", one.who.encode(), msgspec.json.encode(one), one.at) for one in records]
    lived.append(tmp_path, outputs, {"orders": 1})
    BROKEN.update(broken)
    lived.live_on(tmp_path, app)
    BROKEN.clear()
    lived.close(
        tmp_path,
        "two-sums",
        "redriven",
        lambda one: redriven.issuperset(one.operators) and bool(one.operators),
    )
    lived.live_on(tmp_path, app)
    expected = {
        (actor, who): {"cents": sum(one.cents for one in records if one.who == who)}
        for actor in ("first", "second")
        for who in "ab"
    }
    _, snapshot = done(tmp_path, app, order="stages")
    assert fields(rebuilt(snapshot)) == expected
    lived.live_on(tmp_path, app, replace=str(tmp_path / "snapshots"))
    lived.close(tmp_path, "two-sums", "dropped")
    assert fields(live(tmp_path, find_app(app).plan())) == expected


T0 = 1_772_323_200_000
HIDDEN, SHOWN = (f"tests.history.rebuilding.priced:{name}" for name in ("hidden", "shown"))
WAYS = {HIDDEN: ("orders", {"orders": 2, "prices": 2}), SHOWN: ("raw", {"raw": 2, "prices": 2})}
WRITTEN = {HIDDEN: "priced.orders.by-key", SHOWN: "orders"}
PRICE = Price("a", 10, T0 + 100_000)


class Life:
    """A service that runs to the end of what there is, again and again."""

    def __init__(self, folder: Path, app: str) -> None:
        self.folder, self.app = folder, app
        self.topic, self.topics = WAYS[app]

    def run(self, *events: Order | Price, replace: str = "") -> None:
        records = [record("prices" if isinstance(one, Price) else self.topic, one) for one in events]
        lived.append(self.folder, records, self.topics)
        lived.live_on(self.folder, self.app, replace=replace)

    def redrive(self) -> int:
        return lived.close(self.folder, "priced", "redriven")

    def rebuilt(self, **options: Any) -> tuple[int, str]:
        """The last sum that a rebuild in stages comes to, and its snapshot."""
        place = f"parquet:{self.folder / 'out'}"
        _, snapshot = done(
            self.folder, self.app, order="stages", outputs=place, on_error="dead-letter", **options
        )
        found = lived.outputs(self.folder / "out", snapshot, "sums")
        totals = [msgspec.json.decode(one.value or b"", type=Sum).total for one in found]
        return max(totals, default=0), f"{self.folder / 'snapshots'}#{snapshot.manifest.id}"

    def total(self) -> int:
        """The last sum that the service has emitted."""
        return max(
            msgspec.json.decode(one.value or b"", type=Sum).total for one in lived.read(self.folder, "sums")
        )


@pytest.fixture(params=[HIDDEN, SHOWN], ids=["by-key", "own-topic"])
def life(tmp_path: Path, request: pytest.FixtureRequest) -> Life:
    return Life(tmp_path, request.param)


@pytest.mark.parametrize("replaced", [False, True])
def test_what_failed_before_a_rebuild_counts_when_it_is_redriven_after_it(life: Life, replaced: bool) -> None:
    """``replaced``: the service goes on from the rebuild, in which it has failed again."""
    life.run(Order("o1", "a", 3, T0))
    _, snapshot = life.rebuilt()
    if replaced:
        life.run(replace=snapshot)
    life.run(PRICE, Order("o9", "a", 4, T0 + 200_000))
    assert life.redrive() == 1
    life.run()
    assert life.total() == 70
    if not replaced:
        base, _, base_id = snapshot.partition("#")
        assert life.rebuilt(base=base, base_id=base_id)[0] == 70
        assert life.rebuilt()[0] == 40, "in its place it fails again"


def test_what_is_handled_in_its_place_is_handled_again_if_it_is_redriven(life: Life) -> None:
    """So its letter is dropped. It stays open until then, and the rebuild says so."""
    life.run(Order("o1", "a", 3, T0))
    life.run(Price("a", 10, T0 - 100_000))  # in stages it comes first
    total, snapshot = life.rebuilt()
    assert total == 30
    life.run(replace=snapshot)
    assert life.redrive() == 1
    life.run()
    assert life.total() == 60


def test_a_redriven_record_of_a_foreign_partition_counts(tmp_path: Path) -> None:
    life = Life(tmp_path, SHOWN)
    life.run(Price("a", 10, T0 - 100_000))
    with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
        foreign = record("orders", Order("x", "a", 100, T0 + 5_000))
        log.append_all([foreign], 1 - partition_of(b"a", 2))
    life.run(Order("o1", "a", 3, T0))
    assert life.redrive() == 1
    life.run()
    assert life.total() == life.rebuilt()[0] == 1_030


def scans(folder: Path, *ids: int) -> None:
    made = [{"parcel": "p", "at": T0 + 10_000 * one, "id": one} for one in ids]
    lived.append(folder, [Output("scans", b"p", msgspec.json.encode(one), T0) for one in made], {"scans": 1})


def seen(states: list[lived.TaskState]) -> dict[int, int]:
    found: dict[int, int] = fields(states)["Parcel", "p"]["seen"]
    return found


@pytest.mark.parametrize("app", ["arriving", "ordered"])
def test_what_later_code_can_decode_counts_once_when_it_is_redriven(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run has refused it, and that stays so: in what is read again at a start, and in each run along the tape."""
    ref = f"tests.history.rebuilding.corrected:{app}"
    monkeypatch.setenv("WRONG", "codec 2")
    scans(tmp_path, 1, 2, 3)
    lived.live_on(tmp_path, ref, ends=False)
    monkeypatch.setenv("WRONG", "")
    lived.live_on(tmp_path, ref, ends=False)  # in an ordered actor, 3 waits, and a start finds it again
    assert lived.close(tmp_path, app, "redriven") == 1
    lived.live_on(tmp_path, ref, ends=False)
    scans(tmp_path, 9)
    lived.live_on(tmp_path, ref, ends=False)
    expected = {1: 1, 2: 1, 3: 1} | ({9: 1} if app == "arriving" else {})
    assert seen(live(tmp_path, find_app(ref).plan())) == expected
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        report = replay(find_app(ref).plan(), log, ReplayOptions(compare=True, any_environment=True))
        assert not report.differences.count, report.differences
    for order in ("tape", "stages"):
        _, snapshot = done(tmp_path, ref, order=order)
        assert seen(rebuilt(snapshot)) == expected, order


def test_what_waited_at_the_base_of_a_rebuild_and_failed_later_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = "tests.history.rebuilding.corrected:ordered"
    monkeypatch.setenv("WRONG", "handler 1,handler 3")
    scans(tmp_path, 1, 2, 3)
    lived.live_on(tmp_path, ref, ends=False)  # 1 fails, 3 waits
    _, base = done(tmp_path, ref, order="tape")
    scans(tmp_path, 9)
    lived.live_on(tmp_path, ref, ends=False)  # 3 fails
    monkeypatch.setenv("WRONG", "")
    assert lived.close(tmp_path, "ordered", "redriven") == 2
    lived.live_on(tmp_path, ref, ends=False)
    expected = {1: 1, 2: 1, 3: 1}
    assert seen(live(tmp_path, find_app(ref).plan())) == expected
    for order in ("tape", "stages"):
        _, snapshot = done(
            tmp_path, ref, order=order, base=str(tmp_path / "snapshots"), base_id=base.manifest.id
        )
        assert seen(rebuilt(snapshot)) == expected, order


def test_what_was_redriven_but_not_read_when_a_rebuild_handled_it_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = "tests.history.rebuilding.corrected:arriving"
    monkeypatch.setenv("WRONG", "handler 2")
    scans(tmp_path, 1, 2)
    lived.live_on(tmp_path, ref, ends=False)
    monkeypatch.setenv("WRONG", "")
    assert lived.close(tmp_path, "arriving", "redriven") == 1
    _, snapshot = done(tmp_path, ref, order="stages")
    assert seen(rebuilt(snapshot)) == {1: 1, 2: 1}
    lived.live_on(tmp_path, ref, ends=False)
    _, snapshot = done(tmp_path, ref, order="stages")
    lived.live_on(tmp_path, ref, replace=f"{tmp_path / 'snapshots'}#{snapshot.manifest.id}", ends=False)
    scans(tmp_path, 3)
    lived.live_on(tmp_path, ref, ends=False)
    assert seen(live(tmp_path, find_app(ref).plan())) == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("foreign", [False, True])
def test_what_failed_and_was_redriven_twice_counts_once_in_a_rebuild(
    foreign: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``foreign``: it is in a wrong partition, and its record key says nothing about the right one."""
    ref, parts = "tests.history.rebuilding.corrected:spread", {"scans": 2}
    wrong = 1 - partition_of(b"p", 2) if foreign else partition_of(b"p", 2)
    monkeypatch.setenv("WRONG", "handler 2")
    lived.append(tmp_path, [], parts)
    with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
        value = msgspec.json.encode({"parcel": "p", "at": T0, "id": 2})
        log.append_all([Output("scans", b"another key" if foreign else b"p", value, T0)], wrong)
    lived.live_on(tmp_path, ref, ends=False)
    _, base = done(tmp_path, ref, order="tape")
    for _ in range(2 + foreign):  # the first one of a foreign event brings it to its task
        assert lived.close(tmp_path, "spread", "redriven") == 1
        lived.live_on(tmp_path, ref, ends=False)
    monkeypatch.setenv("WRONG", "")
    assert lived.close(tmp_path, "spread", "redriven") == 1
    lived.live_on(tmp_path, ref, ends=False)
    assert seen(live(tmp_path, find_app(ref).plan())) == {2: 1}
    places: dict[str, Any] = {"base": str(tmp_path / "snapshots"), "base_id": base.manifest.id}
    ways: list[tuple[Any, dict[str, Any]]] = [
        (one, some) for some in (places, {}) for one in ("tape", "stages")
    ]
    for order, options in ways:
        accepted: dict[str, Any] = {"on_error": "dead-letter"} if order == "stages" else {}
        _, snapshot = done(tmp_path, ref, order=order, **accepted, **options)
        assert seen(rebuilt(snapshot)) == {2: 1}, (order, options)


@pytest.mark.parametrize("app", ["arriving", "ordered"])
def test_what_fails_again_in_its_place_is_handled_where_it_was_redriven(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state was not ready for it, and is not in a rebuild, either."""
    ref = f"tests.history.rebuilding.corrected:{app}"
    monkeypatch.setenv("WRONG", "order")
    scans(tmp_path, 2, 3)
    lived.live_on(tmp_path, ref, ends=False)
    scans(tmp_path, 1, 9)
    lived.live_on(tmp_path, ref, ends=False)
    assert lived.close(tmp_path, app, "redriven") == 1
    lived.live_on(tmp_path, ref, ends=False)
    expected = seen(live(tmp_path, find_app(ref).plan()))
    assert expected[2] == 1
    for order in ("tape", "stages"):
        _, snapshot = done(tmp_path, ref, order=order)
        assert seen(rebuilt(snapshot)) == expected, order


@pytest.mark.parametrize("handled", [False, True])
def test_what_is_redriven_before_an_app_is_reshaped_counts_once(
    handled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``handled``: by then. Otherwise it comes to the other log, where its original has no place."""
    monkeypatch.setenv("WRONG", "handler 2,handler 3")
    source, target = tmp_path / "a", tmp_path / "b"
    ref, wide = (f"tests.history.rebuilding.corrected:{name}" for name in ("arriving", "wide"))
    others = msgspec.json.encode({"parcel": "q", "at": T0, "id": 0})
    lived.append(source, [Output("scans", b"q", others, T0)] * 20, {"scans": 1})
    scans(source, 1, 2, 3)  # so their offsets are higher than any in their new partition
    lived.live_on(source, ref, ends=False)
    monkeypatch.setenv("WRONG", "")
    assert lived.close(source, "arriving", "redriven") == 2
    if handled:
        lived.live_on(source, ref, ends=False)
    logs = EmbeddedLog(source / "log", create=False), EmbeddedLog(target / "log")
    with closing(logs[0]) as before, closing(logs[1]) as after:
        made, _ = reshape(find_app(wide).plan(), before, after, str(target / "snapshots"), 2)
    lived.live_on(target, wide, ends=False)
    expected = {1: 1, 2: 1, 3: 1}
    assert seen(live(target, find_app(wide).plan())) == expected
    places: dict[str, Any] = {"base": str(target / "snapshots"), "base_id": made.id}
    ways: list[tuple[Any, dict[str, Any]]] = [("tape", {}), ("stages", places)]
    for order, options in ways:
        _, snapshot = done(target, wide, order=order, **options)
        assert seen(rebuilt(snapshot)) == expected, order
