"""The pytest plugin: fixtures that make harnesses and systems, close them, and have each test prove replay.

::

    def test_a_departure_counts(tailrace_harness):
        h = tailrace_harness(app)
        h.send(departures, Departure("D-ABCD", 0))
        assert h.query(Aircraft, "D-ABCD", "status") == "in the air"

When the test has passed, every harness it made replays what was committed, and the test fails if a byte
differs. ``tailrace_harness(app, replay=False)`` leaves that out.
``tailrace_system(app, other, ...)`` does the same for several apps on one log. ``--tailrace-reload`` runs all
of them with ``reload=True``. Nothing of the framework is imported here before it is used.

::

    @pytest.mark.explore(schedules=50)
    def test_an_order_is_paid_or_not(tailrace_harness):
        h = tailrace_harness(app)
        h.send(checkouts, Checkout("o1", 0))
        h.send(payments, Payment("o1", 60_000))

A test with this mark is explored when it has passed: what it sent is run under 50 schedules (200 by default),
and it fails if the results depend on the schedule. The arguments are those of ``Harness.explore``. It
explores events: a test's own crashes, clocks and watermarks are left out.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from tailrace.core.declare.app import App
    from tailrace.testing.harness import Harness
    from tailrace.testing.system import System


class MakeHarness(Protocol):
    """What the fixture gives: ``Harness`` with one argument more."""

    def __call__(self, app: App, *, replay: bool = True, **options: Any) -> Harness:
        """Make a harness. ``replay=False``: do not replay it at the end; ``options`` as for ``Harness``."""
        ...


class MakeSystem(Protocol):
    """What the fixture gives: ``System`` with one argument more."""

    def __call__(self, *apps: App, replay: bool = True, **options: Any) -> System:
        """Make a system. ``replay=False``: do not replay it at the end; ``options`` as for ``System``."""
        ...


_MADE = pytest.StashKey[list[tuple["Harness | System", bool]]]()
"""The harnesses and systems of a test, and whether each is to be replayed."""
_NONE: list[tuple[Harness | System, bool]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("tailrace")
    group.addoption(
        "--tailrace-reload",
        action="store_true",
        help="decode every touched actor instance again after each of its handlers",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        "explore(schedules=200, ...): run what a test has sent under many schedules when it has passed; "
        "see Harness.explore",
    )


@pytest.fixture
def _tailrace_made(request: pytest.FixtureRequest) -> Generator[list[tuple[Harness | System, bool]]]:
    """What a test makes: replayed when it has passed, and closed."""
    made: list[tuple[Harness | System, bool]] = []
    request.node.stash[_MADE] = made
    yield made
    for one, _ in made:
        one.close()


@pytest.fixture
def tailrace_harness(
    request: pytest.FixtureRequest, _tailrace_made: list[tuple[Harness | System, bool]]
) -> MakeHarness:
    """Makes harnesses: ``tailrace_harness(app, **options)``. The test's end replays and closes them."""
    # pytest imports this module in every run, but the framework only where a test uses it.
    from tailrace.testing.harness import Harness  # noqa: PLC0415

    def make(app: App, *, replay: bool = True, **options: Any) -> Harness:
        harness = Harness(app, **_with_reload(request, options))
        _tailrace_made.append((harness, replay))
        return harness

    return make


@pytest.fixture
def tailrace_system(
    request: pytest.FixtureRequest, _tailrace_made: list[tuple[Harness | System, bool]]
) -> MakeSystem:
    """Makes systems: ``tailrace_system(app, other, **options)``. The test's end replays and closes them."""
    from tailrace.testing.system import System  # noqa: PLC0415

    def make(*apps: App, replay: bool = True, **options: Any) -> System:
        system = System(*apps, **_with_reload(request, options))
        _tailrace_made.append((system, replay))
        return system

    return make


def _with_reload(request: pytest.FixtureRequest, options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "reload": True} if request.config.getoption("--tailrace-reload") else options


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Replay what a test has committed, and explore what it has sent: a difference, or a dead letter that it has not read, fails it."""
    result = yield
    made = item.stash.get(_MADE, _NONE)
    for one, wanted in made:
        if wanted and not one.closed:
            one.replay()
        one.check()
    if (explored := item.get_closest_marker("explore")) is not None:
        if not made:
            from tailrace.core.errors import UsageError  # noqa: PLC0415  # as above

            raise UsageError(
                "the mark explore is on a test that makes no harness",
                hint="Make it with the fixture tailrace_harness or tailrace_system.",
            )
        for one, _ in made:
            one.explore(**explored.kwargs)
    return result
