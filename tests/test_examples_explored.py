"""Every example service and every recipe is explored: no schedule changes its results, unless it is listed here with the reason.

New ones are found by themselves. A recipe gets the events that its own tests send. A service gets events that are drawn for the
types of its inputs, from few values, so that keys meet. The flights get real ones, since legs do not meet by chance.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec
import pytest

import tailrace as tr
from schemas.flights import Airframe, Arrival, Cancellation, Departure, Movement, Weather
from services.flights import aircraft, airport
from services.flights.history import facts
from services.flights.load import TOPIC_OF
from tailrace.core.declare.plan import Plan
from tailrace.core.records import Output
from tailrace.testing import Harness
from tailrace.testing.exploring.exploration import explore_feed
from tailrace.testing.exploring.feed import Feed, feed_of, feed_of_log, inputs_from_outside
from tailrace.testing.exploring.schedules import drawn as schedule
from tests.docs.page import ROOT, Shell, blocks, change, write

COOKBOOK = ROOT / "docs" / "cookbook"
SERVICES = [
    path.relative_to(ROOT)
    for path in sorted((ROOT / "services").rglob("*.py"))
    if "tr.App(" in path.read_text("utf-8")
]
RECIPES = sorted(page.name for page in COOKBOOK.glob("*.md") if page.name != "README.md")

DEPENDS = {
    "sensors": {"processing time": "an alert is for people who wait for it now: a rise counts by the clock"},
    "forwarder": {"late events": "a reading that comes after its topic was idle goes to late-readings"},
    "ads": {
        "late events": "a click that comes after its topic was idle may find its impression given without it"
    },
    "prices": {"late events": "an order that comes after its topic was idle is not joined, and counted"},
    "cases": {"late events": "a payment that comes after its topic was idle is not gathered, and counted"},
    "clicks": {"late events": "a click that comes after its topic was idle is not joined, and counted"},
    "rooms": {
        "late events": "a mean of a sensor that was silent may come after its room's hour: it is counted"
    },
    "stocks": {"late events": "a quote after a time without trades may come after its window: it is counted"},
    "orders": {"late events": "an order that comes after its topic was idle goes to late-orders, to be seen"},
}
"""By app, the kinds of dependence that it declares, and why it is meant to have them."""
UNORDERED = {"aircraft": [aircraft.movements]}
"""By app, topics to which several keys emit under one key: an airport gets the movements of all aircraft, in no common order."""

SCHEDULES = 5
EVENTS = 100
FLIGHTS = 800
UNITS_MS = 250, 20_000, 600_000
"""Times between two drawn events: windows, timeouts and gaps of the services are of seconds, minutes or hours."""
BEGIN_MS = 1_767_225_600_000
WORDS = "1", "2", "3", "4.50", "5.5"

History: TypeAlias = list[tuple[tr.Topic[Any, Any], Any]]


def undeclared(plan: Plan, feed: Feed) -> list[str]:
    """What depends on the schedule, and must not. Idleness may change results if the input's ``late=`` says what happens then."""
    free = UNORDERED.get(plan.app, ())
    silent = [number for number in range(1, 200) if schedule(plan, feed, 0, number).silences][:2]
    reports = [explore_feed(plan, feed, schedules=SCHEDULES, unordered=free, idleness=False)]
    reports += [explore_feed(plan, feed, schedule=number, unordered=free) for number in silent]
    assert silent or all(one.is_inbox or one.watermark == "upstream" for one in plan.inputs)
    assert all(one.keys for one in reports), "nothing came of these events"
    allowed = "idleness: ", *DEPENDS.get(plan.app, {})
    found = [each for one in reports for each in (*one.errors, *one.declared)]
    return [one.cause for one in found if not one.declared.startswith(allowed)]


# --- recipes


@pytest.mark.parametrize("page", RECIPES)
def test_no_schedule_changes_the_results_of_a_recipe(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[Plan, Feed]] = []
    close = Harness.close

    def note_and_close(h: Harness) -> None:
        if not h.closed:
            sent.append((h.plan, feed_of_log(h.plan, h.log)))
        close(h)

    monkeypatch.setattr(Harness, "close", note_and_close)
    for test in recipe_tests(page, tmp_path, monkeypatch):
        test()
    assert max(feed.count for _, feed in sent) >= len(WORDS)
    assert [cause for plan, feed in sent if feed.count for cause in undeclared(plan, feed)] == []


def recipe_tests(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The tests of a recipe, with the files as they are wherever its page runs the tests: with the library, and below it."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may be written twice in a second
    found: list[Callable[[], None]] = []
    with Shell(folder) as shell:
        for block in blocks((COOKBOOK / page).read_text("utf-8")):
            if block.kind == "sh" and "pytest" in block.text:
                found += loaded_tests(folder, monkeypatch)
            elif block.kind == "sh":
                shell.type_in(block.text)
            elif block.kind in ("python", "diff"):
                (write if block.kind == "python" else change)(block, folder)
    return found


def loaded_tests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The tests in a folder, with its modules as they are now."""
    for path in folder.glob("*.py"):
        monkeypatch.setitem(sys.modules, path.stem, None)  # removes it in the end
        del sys.modules[path.stem]
    importlib.invalidate_caches()
    modules = [importlib.import_module(path.stem) for path in sorted(folder.glob("test_*.py"))]
    return [one for module in modules for name, one in vars(module).items() if name.startswith("test_")]


# --- services


@pytest.mark.parametrize("path", SERVICES, ids=str)
def test_no_schedule_changes_the_results_of_a_service(path: Path) -> None:
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    (app,) = (one for one in vars(module).values() if isinstance(one, tr.App))
    plan = app.plan()
    histories = [REAL[app.name]()] if app.name in REAL else [drawn(plan, unit_ms) for unit_ms in UNITS_MS]
    for history in histories:
        outputs = [Output(topic.name, topic.encode_key(one), topic.encode(one), 0) for topic, one in history]
        assert undeclared(plan, feed_of(plan, outputs)) == []


def flights(*wanted: type) -> History:
    """The first facts of a day, those of these types; of the registry those about the aircraft that fly then."""
    history = [event for _, event in facts(date(2013, 7, 22), date(2013, 7, 23))]
    others = [one for one in history if not isinstance(one, Airframe)][:FLIGHTS]
    flown = {one.tail for one in others if isinstance(one, Departure)}
    known = [one for one in history if isinstance(one, Airframe) and one.tail in flown]
    return [(TOPIC_OF[type(one)], one) for one in (*known, *others) if isinstance(one, wanted)]


def moved() -> History:
    """The movements that the aircraft emit."""
    return [
        (airport.movements, Movement(one.origin, one.tail, one.carrier, one.flight, one.scheduled_ms, 7, 0))
        for _, one in flights(Departure)
    ]


REAL: Mapping[str, Callable[[], History]] = {
    "aircraft": lambda: flights(Airframe, Departure, Arrival),
    "delays": moved,
    "forecast": lambda: flights(Departure, Arrival),
    "airport": lambda: moved() + flights(Weather, Cancellation),
}


def drawn(plan: Plan, unit_ms: int) -> History:
    """Events of all inputs, out of order by no more than is declared."""
    random = Random(unit_ms)
    inputs = [one.topic for one in inputs_from_outside(plan) if one.topic is not None and not one.own]
    history: History = []
    for n in range(EVENTS):
        topic = random.choice(inputs)
        late_ms = random.randrange(min(topic.settings.out_of_order_ms, 5 * unit_ms) + 1)
        history.append((topic, event(random, topic, BEGIN_MS + n * unit_ms - late_ms, unit_ms)))
    return history


def event(random: Random, topic: tr.Topic[Any, Any], at_ms: int, unit_ms: int) -> Any:
    """An event of a topic with this event time."""
    (cls,) = topic.types
    fields = msgspec.structs.fields(cls)
    values = {one.name: value(random, one.type, at_ms, unit_ms) for one in fields}
    if topic.time_of is not None:
        numbered = cls(**{one.name: number for number, one in enumerate(fields)})
        values[fields[topic.time_of(numbered) or 0].name] = at_ms
    return msgspec.convert(values, cls)


def value(random: Random, of: Any, at_ms: int, unit_ms: int) -> Any:
    """A value of the type of a field. A number may be a time near ``at_ms``, a length of time, or small."""
    kind = repr(of)
    if "str" in kind:
        return random.choice(WORDS)
    if "bool" in kind:
        return random.random() < 0.5
    if "int" in kind:
        near_ms, for_ms = at_ms + random.randrange(-3, 4) * unit_ms, random.randrange(6) * unit_ms
        return random.choice((near_ms, for_ms, random.randrange(6)))
    assert "float" in kind, f"no values of {kind} are drawn yet"
    return float(random.randrange(100))
