"""``into=``: events of a topic are filled by name from results, against the oracle; what cannot be filled is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import Enum
from random import Random
from typing import Annotated, Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.errors import DefinitionError
from tailrace.testing import Harness
from tests.library import oracle_joins as oracle
from tests.library.oracle_joins import Arrival, Result


class Shown(msgspec.Struct, tr.Keyed[str], frozen=True):
    ad: tr.Key[str]
    at: tr.EventTime[int]
    campaign: str
    place: int


class Click(msgspec.Struct, tr.Keyed[str], frozen=True):
    ad: tr.Key[str]
    at: tr.EventTime[int]
    user: str


class Both(msgspec.Struct, tr.Keyed[str], frozen=True):
    """What a join of both gives; either may be missing."""

    ad: tr.Key[str]
    at: tr.EventTime[int]
    user: str | None
    campaign: str | None
    place: float | None
    right: Click | None
    source: str = "join"


class Case(msgspec.Struct, frozen=True):
    ad: tr.Key[str]
    user: str | None
    campaign: str | None
    since: int
    repeated: tuple[int, ...]


Joining = Callable[[tr.App, Any, Any, Any, str], Any]
OfKey = Callable[[list[Arrival], list[Arrival], str], list[Result]]


def both_of(ad: str, time: int, left: Shown | None, right: Click | None) -> Both:
    user = None if right is None else right.user
    campaign, place = (None, None) if left is None else (left.campaign, left.place)
    return Both(ad, time, user, campaign, place, right)


@pytest.mark.one_seed_in(10)
@pytest.mark.parametrize(
    ("join", "of_key"),
    [
        (
            lambda app, left, right, to, how: app.join("j", left, right, within=(-9, 20), how=how, into=to),
            lambda lefts, rights, how: oracle.interval(lefts, rights, -9, 20, how),
        ),
        (
            lambda app, left, right, to, how: app.window_join(
                "j", left, right, windows.tumbling(30), how=how, into=to
            ),
            lambda lefts, rights, how: oracle.window(lefts, rights, 30, 0, how),
        ),
        (
            lambda app, left, right, to, how: app.asof("j", left, right, keep=25, into=to),
            lambda lefts, rights, how: oracle.asof(lefts, rights, 25),
        ),
    ],
)
def test_a_topic_gets_the_fields_of_both_by_name(join: Joining, of_key: OfKey, seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        how, time = random.choice(("inner", "left", "right", "full")), 0
        app = tr.App("ads", partitions=3)
        shown, clicks, to = app.topic("shown", Shown), app.topic("clicks", Click), app.topic("both", Both)
        assert join(app, shown, clicks, to, how) is to
        sent: dict[str, tuple[list[Arrival], list[Arrival]]] = {one: ([], []) for one in "abc"}
        with Harness(app, checked=seed % 2 == 0) as h:
            for number in range(60):
                time += random.choice((0, 1, 5, 20))
                ad, side = random.choice("abc"), random.randrange(2)
                event = Click(ad, time, f"u{number}") if side else Shown(ad, time, f"c{number}", number)
                topic: Any = clicks if side else shown
                h.send(topic, event)
                sent[ad][side].append(Arrival(time, side, number, event))
                if random.random() < 0.1:
                    h.crash()
            h.end_of_input()
            found = [both_of(each, *result) for each in sent for result in of_key(*sent[each], how)]
            assert found
            assert sorted(h.emitted(to), key=repr) == sorted(found, key=repr), f"seed {seed}, {how}"
            assert not h.replay().differences.count


def test_a_topic_gets_the_fields_of_a_case_by_name() -> None:
    app = tr.App("cases", partitions=1)
    shown, clicks, cases = app.topic("shown", Shown), app.topic("clicks", Click), app.topic("cases", Case)
    assert app.gather("g", shown, clicks, within=10, into=cases) is cases
    with Harness(app) as h:
        h.send(clicks, Click("a", 1, "ann"), Click("a", 2, "bob"), Click("b", 3, "cid"))
        h.send(shown, Shown("a", 4, "spring", 1))
        h.end_of_input()
        assert h.emitted(cases) == [Case("a", "ann", "spring", 1, (0, 1)), Case("b", "cid", None, 3, (0, 0))]


def test_a_topic_gets_the_fields_of_an_event_and_of_what_is_looked_up() -> None:
    class Rate(msgspec.Struct, frozen=True):
        user: tr.Key[str]
        rate: float

    class Rated(msgspec.Struct, frozen=True):
        ad: tr.Key[str]
        at: tr.EventTime[int]
        rate: float | None

    app = tr.App("rates", partitions=1)
    clicks, rates, rated = (
        app.topic("clicks", Click),
        app.topic("rates", Rate, broadcast=True),
        app.topic("rated", Rated),
    )
    assert app.lookup("l", clicks, rates, by="user", into=rated) is rated
    with Harness(app) as h:
        h.send(rates, Rate("ann", 0.5))
        h.send(clicks, Click("a", 1, "ann"), Click("a", 2, "bob"))
        assert h.emitted(rated) == [Rated("a", 1, 0.5), Rated("a", 2, None)]


def topic_of(app: tr.App, **fields: Any) -> tr.Topic[Any, Any]:
    named = {"ad": tr.Key[str], **fields}
    return app.topic("to", msgspec.defstruct("To", [*named.items()]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nothing": int}, "'nothing' .* nothing has this name"),
        ({"at": int}, "'at' .* two values for it, that of Shown, and that of Click"),
        ({"user": int}, "'user' .* it is int, and that of Click is str"),
        ({"user": datetime}, "'user' .* it is datetime, and that of Click is str"),
        ({"place": str | None}, r"'place' .* it is str \| None, and that of Shown is int"),
        (
            {"left": Click | None, "time": tr.EventTime[datetime]},
            "'time' .* it is .*datetime.*, .*event time is int",
        ),
        ({"campaign": tr.Key[str]}, "'campaign' .* two values for it, .*the key, and that of Shown"),
        ({"ad": tr.Key[int]}, "'ad' .* it is .*int.*, and that of the key is str"),
    ],
)
def test_what_a_join_cannot_fill_is_refused_where_it_is_written(fields: dict[str, Any], message: str) -> None:
    app = tr.App("refused")
    shown, clicks = app.topic("shown", Shown), app.topic("clicks", Click)
    if fields.get("campaign") is not None:
        to = app.topic("to", msgspec.defstruct("To", [*fields.items()]))
    else:
        to = topic_of(app, **fields)
    with pytest.raises(DefinitionError, match=message):
        app.join("j", shown, clicks, within=5, into=to)


@pytest.mark.parametrize(
    ("how", "refused"), [("inner", False), ("left", True), ("right", False), ("full", True)]
)
def test_a_side_that_may_be_missing_needs_a_field_that_may_be_none(how: Any, refused: bool) -> None:
    app = tr.App("missing")
    shown, clicks = app.topic("shown", Shown), app.topic("clicks", Click)
    to = topic_of(app, user=str, campaign=str | None)
    if not refused:
        assert app.join("j", shown, clicks, within=5, how=how, into=to) is to
        return
    with pytest.raises(DefinitionError, match=r"'user' .* it is str, and that of Click is str \| None"):
        app.join("j", shown, clicks, within=5, how=how, into=to)


def test_a_join_does_not_write_to_its_own_input() -> None:
    app = tr.App("circle")
    shown, clicks = app.topic("shown", Shown), app.topic("clicks", Click)
    with pytest.raises(DefinitionError, match="'clicks' as its input and as into="):
        app.join("j", shown, clicks, within=5, into=clicks)


def place(event: Shown) -> int:
    return event.place


def campaign(event: Shown) -> str:
    return event.campaign


class Kind(Enum):
    FINAL = "final"


@pytest.mark.parametrize(
    ("aggregate", "declared", "message"),
    [
        (agg.mean(place), int, "it is int, and that of the result is float"),
        (agg.count(), str, "it is str, and that of the result is int"),
        (agg.count(), datetime, "it is datetime, and that of the result is int"),
        (agg.count(), list[int], "that of the result is int"),
        (agg.collect(Shown), str, "that of the result is tuple"),
        (agg.count(), float, None),
        (agg.count(), Annotated[int, msgspec.Meta(ge=0)], None),
        (agg.count(), int | None, None),
        (agg.count(), Any, None),
        (agg.total(place), int, None),  # its values are perhaps only ints
        (agg.total(place), str, r"that of the result is int \| float"),
        (agg.max(campaign), str, None),
        (agg.max(campaign), bytes, "it is bytes"),
        (agg.top(2, by=campaign, of=place), list[tuple[str, int]], None),
        (agg.latest(Shown), Shown, None),
        (agg.latest(Shown), int, "that of the result is Shown"),
    ],
)
def test_the_type_of_a_value_is_compared_where_the_window_is_written(
    aggregate: Any, declared: Any, message: str | None
) -> None:
    app = tr.App("typed")
    shown, to = app.topic("shown", Shown), topic_of(app, value=declared, kind=Kind)
    if message is None:
        app.window("w", shown, windows.tumbling(10), aggregate, into=to)
        return
    with pytest.raises(DefinitionError, match=f"cannot fill the field 'value' .*{message}"):
        app.window("w", shown, windows.tumbling(10), aggregate, into=to)


@pytest.mark.parametrize(
    ("aggregate", "fill", "field", "message"),
    [
        (agg.mean(place), None, {"value": float}, "'value' .* it is float, and that of the result is float . None"),
        (agg.mean(place), None, {"value": float | None}, None),
        (agg.mean(place), 0, {"value": float}, None),
        (agg.count(), 0.5, {"value": int}, "'value' .* it is int, and that of the result is int . float"),
        (agg.several(n=agg.count()), None, {"n": int}, "'n' .* it is int, and that of Several is int . None"),
        (agg.several(n=agg.count()), None, {"n": int | None}, None),
    ],
)  # fmt: skip
def test_the_value_of_an_empty_window_is_compared_where_the_window_is_written(
    aggregate: Any, fill: Any, field: dict[str, Any], message: str | None
) -> None:
    app = tr.App("filled")
    shown, to = app.topic("shown", Shown), topic_of(app, **field)
    options: dict[str, Any] = {"fill": fill, "fill_windows": 1, "into": to}
    if message is None:
        app.window("w", shown, windows.tumbling(10), aggregate, **options)
        return
    with pytest.raises(DefinitionError, match=message):
        app.window("w", shown, windows.tumbling(10), aggregate, **options)


def test_the_key_of_a_window_is_not_taken_for_another_field_of_its_events() -> None:
    app = tr.App("keyed")
    shown = app.topic("shown", Shown)
    other = app.topic("other", msgspec.defstruct("Other", [("campaign", tr.Key[str])]))
    with pytest.raises(DefinitionError, match=r"'campaign' .* two values"):
        app.window("w", shown, windows.tumbling(10), agg.latest(Shown), into=other)
