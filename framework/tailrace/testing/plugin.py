"""The pytest plugin: a fixture that makes harnesses, closes them, and has each test prove replay.

::

    def test_a_departure_counts(tailrace_harness):
        h = tailrace_harness(app)
        h.send(departures, Departure("D-ABCD", 0))
        assert h.query(Aircraft, "D-ABCD", "status") == "in the air"

When the test has passed, every harness it made replays what was committed, and the test fails if a byte differs.
``tailrace_harness(app, replay=False)`` or ``@pytest.mark.tailrace(replay=False)`` leaves that out. ``--tailrace-reload``
runs every harness with ``reload=True``. Nothing of the framework is imported here before it is used.

::

    @pytest.mark.explore(schedules=50)
    def test_an_order_is_paid_or_not(tailrace_harness):
        h = tailrace_harness(app)
        h.send(checkouts, Checkout("o1", 0))
        h.send(payments, Payment("o1", 60_000))

A test with this mark is explored when it has passed: what it sent is run under 50 schedules (200 by default), and it fails
if the results depend on the schedule. The arguments are those of ``Harness.explore``; ``--tailrace-schedules N`` takes N
schedules for all such tests. It explores events: a test's own crashes, clocks and watermarks are left out.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from tailrace.core.declare.app import App
    from tailrace.testing.harness import Harness


class MakeHarness(Protocol):
    """What the fixture gives: ``Harness`` with one argument more."""

    def __call__(self, app: App, *, replay: bool = True, **options: Any) -> Harness:
        """Make a harness; ``replay=False`` for one that is not replayed at the end, ``options`` as for ``Harness``."""
        ...


_MADE = pytest.StashKey[list[tuple["Harness", bool]]]()
"""The harnesses of a test, and whether each is to be replayed."""
_NONE: list[tuple[Harness, bool]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("tailrace")
    group.addoption(
        "--tailrace-reload",
        action="store_true",
        help="decode every touched actor instance anew after each of its handlers",
    )
    group.addoption(
        "--tailrace-schedules",
        type=int,
        metavar="N",
        help="run N schedules in each test that is marked with explore",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    config.addinivalue_line(
        "markers", "tailrace(replay=True): whether a test's harnesses are replayed when it has passed"
    )
    config.addinivalue_line(
        "markers",
        "explore(schedules=200, ...): run what a test has sent under many schedules when it has passed; "
        "see Harness.explore",
    )


@pytest.fixture
def tailrace_harness(request: pytest.FixtureRequest) -> Generator[MakeHarness]:
    """Makes harnesses: ``tailrace_harness(app, **options)``. They are replayed and closed when the test is over."""
    # pytest imports this module in every run; the framework only where a test uses it.
    from tailrace.testing.harness import Harness  # noqa: PLC0415

    made: list[tuple[Harness, bool]] = []
    request.node.stash[_MADE] = made
    reload = bool(request.config.getoption("--tailrace-reload"))

    def make(app: App, *, replay: bool = True, **options: Any) -> Harness:
        if reload:
            options["reload"] = True
        harness = Harness(app, **options)
        made.append((harness, replay))
        return harness

    yield make
    for harness, _ in made:
        harness.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Replay what a test has committed, and explore what it has sent: a difference fails the test itself."""
    result = yield
    made = item.stash.get(_MADE, _NONE)
    mark = item.get_closest_marker("tailrace")
    if mark is None or mark.kwargs.get("replay", True):
        for harness, wanted in made:
            if wanted and not harness.closed:
                harness.replay()
    if (explored := item.get_closest_marker("explore")) is not None:
        _explore(made, dict(explored.kwargs), item.config.getoption("--tailrace-schedules"))
    return result


def _explore(made: list[tuple[Harness, bool]], options: dict[str, Any], schedules: int | None) -> None:
    from tailrace.core.errors import UsageError  # noqa: PLC0415  # as above

    if not made:
        raise UsageError(
            "the mark explore is on a test that makes no harness",
            mend="Make it with the fixture tailrace_harness, or call explore(app, history).",
        )
    if schedules is not None:
        options["schedules"] = schedules
    for harness, _ in made:
        harness.explore(**options)
