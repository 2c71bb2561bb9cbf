"""State that was migrated is the state that the present code would have made of all events: random lives, against plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.errors import DefinitionError, IncompatibleStateError, SnapshotMismatchError, UsageError
from tailrace.core.records import Output
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import base_name
from tailrace.history.snapshots import migrating
from tailrace.history.snapshots.start_from_snapshot import Start, start_from
from tailrace.state.snapshots import Snapshots
from tailrace.testing import Harness
from tests.cli.commands import Ended, run
from tests.history.rebuilding.lived import TaskState, fields
from tests.history.test_reshaping import Life
from tests.history.till_versions import LATE_MS, NAMES, Note, One, Said, Sale, Three, app_of, euros


def rows_of(h: Harness) -> dict[bytes, bytes]:
    """All rows of the state."""
    history, end = AppHistory(h.plan, h.log), rows.prefix_end(rows.STATE)
    some = (history.committed(number, with_rows=True).rows for number in range(h.plan.partitions))
    return {row: value for one in some if one is not None for row, value in one.scan(rows.STATE, end)}


def drawn(random: Random, count: int) -> list[Sale]:
    """Events, some of them so close that a key has more timers than lie inside its row."""
    found, at = list[Sale](), 10_000
    for _ in range(count):
        at += random.choice([1, 1, 1, 30, 900, 6_000])
        found.append(Sale(random.choice(NAMES), at, random.randrange(1, 500)))
    return found


def totals(events: list[Sale]) -> Counter[str]:
    found = Counter[str]()
    for one in events:
        found[one.name] += one.cents
    return found


@pytest.mark.one_seed_in(25)
def test_migrated_state_is_what_the_last_version_makes_of_all_events(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        events = drawn(random, 40)
        versions = random.choice([[1, 3], [1, 2, 3], [2, 3], [1, 2]])
        stops = [*sorted(random.sample(range(5, 36), len(versions) - 1)), len(events)]
        start, begin, emitted, migrated = None, 0, list[Said](), dict[bytes, bytes]()
        for version, stop in zip(versions, stops, strict=True):
            app, sales, said, _ = app_of(version)
            if start is not None:
                start = start.migrated(app)
            with Harness(app, start=start) as h:
                for event in events[begin:stop]:
                    h.send(sales, event)
                    if random.random() < 0.1:
                        h.crash()
                begin = stop
                if stop == len(events):
                    h.advance_watermark(events[-1].at + 3 * LATE_MS)
                emitted += h.emitted(said)
                h.crash()
                h.replay()  # from the migrated snapshot on, along the tape: an error if one byte differs
                start, migrated = h.snapshot(), rows_of(h)
        app, sales, said, actor = app_of(versions[-1])
        with Harness(app) as h:
            h.send(sales, *events)
            h.advance_watermark(events[-1].at + 3 * LATE_MS)
            assert migrated == rows_of(h), seed
            for name, cents in totals(events).items():
                found = cast(Any, h.state(actor, name))
                total = divmod(cents, 100)
                assert found.money == euros(cents) if versions[-1] == 3 else found.total == total, seed
        assert sorted((one.name, one.at, one.what) for one in emitted) == sorted(
            (one.name, one.at + LATE_MS, what)
            for one in events
            for what in [euros(one.cents), *(["plain"] if not one.cents % 7 else [])]
        ), seed


# --- keys that fail, and what is refused


def lived(version: int = 1, *events: Sale) -> Any:
    """A snapshot of a version that has handled some events."""
    app, sales, _, _ = app_of(version)
    with Harness(app) as h:
        h.send(sales, *(events or drawn(Random(1), 20)))
        return h.snapshot()


def changed(*migrations: Callable[..., Any], **fields: tuple[Any, Any]) -> tr.App:
    """Version 9 of the app, with these migrations and plain fields."""
    return version_of("9", *migrations, **fields)


def version_of(version: str, *migrations: Callable[..., Any], **fields: tuple[Any, Any]) -> tr.App:
    app = tr.App("till", version=version, partitions=2)
    sales = app.topic("sales", Sale)

    def sale(self: Any, event: Sale, ctx: tr.Context[str]) -> None: ...

    def timer(self: Any, ctx: tr.Context[str]) -> None: ...

    def late(self: Any, payload: Note, ctx: tr.Context[str]) -> None: ...

    body: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": {
            "days": tr.MapState[int, int],
            "items": tr.ListState[int],
            **{name: one for name, (one, _) in fields.items()},
        },
        "days": tr.field(ttl=50 * LATE_MS),
        **{name: default for name, (_, default) in fields.items()},
        **{f"by_{at}": staticmethod(one) for at, one in enumerate(migrations)},
        "sale": tr.process(sales)(sale),
        "timer": tr.on_timer(timer),
        "late": tr.on_timer("late", payload=Note)(late),
    }
    app.actor(name="Customer")(cast(Any, type(tr.Actor))("Customer", (tr.Actor,), body))
    return app


KEPT: dict[str, tuple[Any, Any]] = {
    "seen": (list[int], tr.field(default_factory=list)),
    "last": (int, tr.field(default=0, ttl=5 * LATE_MS)),
}
"""What version 1 stores beside cents."""


@tr.migrates(from_version="1")
def not_for_ada(key: str, old: One) -> Three:
    if key == "Ada":
        raise ValueError("not she")
    return Three(euros(old.cents))


def work(start: Any, app: tr.App, version: str = "1") -> migrating.Migrating:
    snapshots = Snapshots(start._folder, "till")
    return migrating.Migrating(app.plan(), snapshots, snapshots.open(start.id), {0: version, 1: version})


def test_keys_that_fail_are_counted_and_named_and_nothing_is_published() -> None:
    start, app = lived(), changed(not_for_ada, money=(str, "0.00"), **KEPT)
    snapshots = Snapshots(start._folder, "till")
    found = work(start, app)
    found.check()
    assert (found.failed, found.keys["Customer"], found.changed["Customer"]) == (1, 4, 3)
    assert found.failures == ["Customer 'Ada': ValueError: not she"]
    with pytest.raises(UsageError, match=r"1 key failed, the first: Customer 'Ada': ValueError: not she"):
        start.migrated(app)
    assert [one.id for one in snapshots.list()] == [start.id]


failing = changed(not_for_ada, money=(str, "0.00"), **KEPT)


def test_the_command_migrates_the_snapshot_that_is_named_or_says_what_it_would_do() -> None:
    start = lived()

    def migrate(app: str, which: str, *more: str) -> Ended:
        return run("snapshot", "migrate", app, which, "--snapshots", start._folder, *more)

    newest, broken = "tests.history.till_versions:newest", f"{__name__}:failing"
    assert [migrate(one, start.id, "--check").code for one in (newest, broken)] == [0, 1]
    (said,) = migrate(broken, start.id, "--check", "--json").lines
    assert (said["failed"], said["failures"]) == (1, ["Customer 'Ada': ValueError: not she"])
    assert (said["actors"][0]["keys"], said["actors"][0]["changed"], said["snapshot"]) == (4, 3, None)
    refused = migrate(broken, start.id)
    assert (refused.code, refused.out) == (1, "")
    assert "1 key failed, the first: Customer 'Ada'" in refused.err
    made = migrate(newest, start.id, "--name", "three")
    assert made.code == 0
    assert "Customer: 4 keys, 4 changed\n  two, from version 1: cents to total, currency\n" in made.out
    assert migrate(newest, "three").out == "nothing to migrate\n"


def test_a_migration_that_was_interrupted_is_made_again_with_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, (app, *_) = lived(), app_of(3)
    snapshots, write = Snapshots(start._folder, "till"), cast(Any, migrating).write_task

    def dies(folder: str, number: int, *others: Any, **more: Any) -> Any:
        if number == 1:
            raise KeyboardInterrupt
        return write(folder, number, *others, **more)

    with monkeypatch.context() as patched:
        patched.setattr(migrating, "write_task", dies)
        with pytest.raises(KeyboardInterrupt):
            start.migrated(app)
    assert [one.id for one in snapshots.list()] == [start.id]
    made = [snapshots.open(start.migrated(app).id).manifest.tasks for _ in range(2)]
    assert made[0] == made[1]
    assert all(task.files for task in made[0])


def test_a_start_with_state_of_another_form_is_refused_both_ways() -> None:
    old, (first, *_), (second, *_), (third, *_) = lived(), app_of(1), app_of(2), app_of(3)
    for start, app in [
        (old, second),
        (old, third),
        (old.migrated(second), third),
        (old.migrated(third), second),
    ]:
        with pytest.raises(IncompatibleStateError, match="snapshot migrate"):
            Harness(app, start=start)
    with pytest.raises(IncompatibleStateError, match="Keep the last migration"):
        Harness(first, start=old.migrated(second))
    with pytest.raises(IncompatibleStateError, match="the code is older than the state"):
        old.migrated(third).migrated(second)


def test_state_of_a_version_that_no_migration_names_is_refused() -> None:
    start, app = lived(), changed(not_for_ada, money=(str, "0.00"), **KEPT)
    with pytest.raises(IncompatibleStateError, match=r"written by version '5'.*from_version=\('5', '1'\)"):
        work(start, app, "5")
    several = tr.migrates(from_version=("5", "1"))(lambda key, old: Three("1.00"))
    several.__annotations__ = {"old": One, "return": Three}
    found = work(start, changed(several, money=(str, "0.00"), **KEPT), "5")
    found.check()
    assert found.failed == 0


def test_a_field_that_no_migration_takes_is_kept_or_refused_as_in_any_upgrade() -> None:
    start = lived()
    last = {**KEPT, "last": (str, tr.field(default="", ttl=5 * LATE_MS))}
    with pytest.raises(IncompatibleStateError, match="field 'last'"):
        start.migrated(changed(not_for_ada, money=(str, "0.00"), **last))

    class Missing(msgspec.Struct):
        pence: int = 0

    def typo(key: str, old: Missing) -> Three:
        raise AssertionError

    typo.__annotations__["old"] = Missing
    with pytest.raises(IncompatibleStateError, match="takes pence, which is not stored"):
        start.migrated(changed(tr.migrates(from_version="1")(typo), money=(str, "0.00"), **KEPT))


def test_an_undeclared_field_keeps_its_values_and_their_expiry() -> None:
    def to_euros(key: str, old: One) -> Three:
        return Three(euros(old.cents))

    migrate = tr.migrates(from_version="1")(to_euros)
    events = [Sale(name, 10_000 + at, 7) for at in range(5) for name in NAMES]
    moved = lived(1, *events).migrated(changed(migrate, money=(str, "0.00")))
    again = changed(migrate, money=(str, "0.00"), **KEPT)
    with Harness(again, start=moved) as h:
        for after_ms, last in ((4, 7), (5, 0)):
            h.advance_watermark(10_005 + after_ms * LATE_MS)
            for name in NAMES:
                found = cast(Any, h.state(cast(Any, again.actors["Customer"]), name))
                seen = [one.at for one in events if one.name == name][-3:]
                assert (found.money, found.seen, found.last) == ("0.35", seen, last)


def test_a_row_without_a_field_is_migrated_with_the_default_that_it_reads() -> None:
    class Extra(msgspec.Struct):
        extra: int

    class ExtraText(msgspec.Struct):
        extra: str

    @tr.migrates(from_version="9")
    def to_text(key: str, old: Extra) -> ExtraText:
        return ExtraText(f"{old.extra} of {key}")

    to_text.__annotations__ |= {"old": Extra, "return": ExtraText}
    added = changed(cents=(int, 0), extra=(int, 7), **KEPT)
    with Harness(added, start=lived()) as h:
        h.send(added.topics["sales"], Sale("Ada", 900_000, 5))  # only her row is written again
        start = h.snapshot()
    app = version_of("10", to_text, cents=(int, 0), extra=(str, ""), **KEPT)
    with Harness(app, start=start.migrated(app)) as h:
        found = [cast(Any, h.state(cast(Any, app.actors["Customer"]), name)).extra for name in NAMES]
    assert found == [f"7 of {name}" for name in NAMES]


def test_a_key_whose_fields_become_defaults_is_not_stored() -> None:
    def to_nothing(key: str, old: One) -> Three:
        return Three("0.00")

    app, events = tr.App("till", version="1", partitions=2), [Sale("Ada", 10_000, 5)]
    sales = app.topic("sales", Sale)

    class Customer(tr.Actor):
        cents: int = 0

        @tr.process(sales)
        def sale(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.cents += event.cents

    app.actor(Customer)
    with Harness(app) as h:
        h.send(sales, *events)
        start = h.snapshot()
    with Harness(plain := changed(tr.migrates(from_version="1")(to_nothing), money=(str, "0.00"))):
        pass
    with Harness(plain, start=start.migrated(plain)) as h:
        assert rows_of(h) == {}
        h.replay()


class Ask(msgspec.Struct, frozen=True):
    at: int


def asking(version: str) -> tr.App:
    """Each sale is also told to the next customer. Version 2 counts in steps of ten."""
    app = tr.App("till", version=version, partitions=2)
    sales = app.topic("sales", Sale)

    class Customer(tr.Actor):
        n: int = 0

        @tr.on_message
        def asked(self, message: Ask, ctx: tr.Context[str]) -> None:
            self.n += 1 if version == "1" else 10

        @tr.process(sales)
        def sale(self, event: Sale, ctx: tr.Context[str]) -> None:
            ctx.send(actor, NAMES[NAMES.index(ctx.key) - 1], Ask(event.at))

    class Newer(Customer):
        @staticmethod
        @tr.migrates(from_version="1")
        def tens(key: str, old: Count) -> Count:
            return Count(10 * old.n)

    actor: Any = Customer if version == "1" else Newer
    app.actor(name="Customer")(actor)
    return app


class Count(msgspec.Struct):
    n: int


def test_the_state_of_a_service_is_migrated_once_no_message_is_under_way(tmp_path: Path) -> None:
    life = Life(tmp_path, 2, lambda _: asking("1"))
    snapshots = Snapshots(str(tmp_path / "snapshots"), "till")
    sales = [Sale(name, 10_000 + at, 1) for at in range(3) for name in NAMES]
    life.log.append_all(Output("sales", one.name.encode(), msgspec.json.encode(one), one.at) for one in sales)
    life.run(range(1))
    plan = asking("2").plan()
    with pytest.raises(
        SnapshotMismatchError, match=r"messages of 'till' are under way in partition 1.*--until-end"
    ):
        migrating.migrating_from_log(plan, life.log, snapshots)
    life.run()
    found = migrating.migrating_from_log(plan, life.log, snapshots)
    assert found.migrations == {"Customer": ["tens, from version 1: n to n"]}
    made = found.publish()
    for number in range(2):
        start = Start(
            snapshots.open(made.id),
            base_name(snapshots.open(made.id), str(tmp_path / "snapshots")),
            replace=True,
        )
        for _ in range(2):  # a start that is repeated does nothing
            start_from(plan, number, life.log, start, 1)
    life.plan, life.stores = plan, {}
    life.log.append_all(
        Output("sales", one.name.encode(), msgspec.json.encode(one), one.at) for one in sales[:4]
    )
    life.run()
    counts = fields([TaskState(None, 0, None, list(life.rows().items()))])
    assert counts == {("Customer", name): {"n": 40} for name in NAMES}
    assert migrating.migrating_from_log(plan, life.log, snapshots).migrations == {}
    life.log.close()


# --- declarations


def test_a_wrong_migration_is_refused_where_it_is_written() -> None:
    def declared(
        function: Callable[..., Any], annotations: dict[str, Any], *, version: Any = "1", of: str = ""
    ) -> tr.App:
        function.__annotations__ = annotations
        migrate = tr.migrates(from_version=version, of=of)(function)
        return changed(migrate, money=(str, "0.00"))

    fields = {"old": One, "return": Three}

    class Tagged(msgspec.Struct, tag=True):
        cents: int

    def f(key: Any, old: Any) -> Any: ...

    days, wrong_key = {"old": int, "return": int}, {"key": int, **fields}
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("names no version", lambda: declared(f, fields, version="")),
        ("is called with", lambda: declared(lambda self, key, old: None, fields)),
        ("'old' as a struct of fields", lambda: declared(f, {})),
        ("'old' as a struct of fields", lambda: declared(f, {**fields, "old": int})),
        ("'return' as a struct of fields", lambda: declared(f, {**fields, "return": Tagged})),
        ("cannot be stored", lambda: declared(f, {"old": int, "return": set[int]}, of="days")),
        ("gives 'cents', which is no plain field", lambda: declared(f, {"old": One, "return": One}).plan()),
        ("maps, lists and payloads are: days, items", lambda: declared(f, days, of="day").plan()),
        ("takes keys of type int", lambda: declared(f, wrong_key).plan()),
        ("which is that of the app", lambda: declared(f, fields, version="9").plan()),
        (
            "versions that overlap",
            lambda: changed(not_for_ada, again(("1", "2")), money=(str, "0.00")).plan(),
        ),
        (
            "versions that overlap",
            lambda: changed(again("1"), again("2"), again("1"), money=(str, "")).plan(),
        ),
    ]
    for said, make in cases:
        with pytest.raises((DefinitionError, tr.DurableTypeError), match=said):
            make()

    with pytest.raises(DefinitionError, match="not static"):

        class Customer(tr.Actor):
            @tr.migrates(from_version="1")
            def one(key, old: One) -> Three:  # noqa: N805  # that is the mistake
                return Three("")


def again(version: Any) -> Any:
    def same(key: str, old: One) -> Three:
        return Three("")

    return tr.migrates(from_version=version)(same)
