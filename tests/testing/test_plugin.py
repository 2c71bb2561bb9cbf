"""The pytest plugin, as a user's project meets it."""

import subprocess
import sys

import pytest

import tailrace.testing.harness  # noqa: F401  # pyright: ignore[reportUnusedImport]  # what pytester finds imported, it does not import again in each run

pytest_plugins = ["pytester"]

APP = """
import itertools
import msgspec
import pytest
import tailrace as tr
from tailrace.testing import Harness

class Tick(msgspec.Struct, frozen=True):
    key: str
    n: int = 0

app = tr.App("ticking")
ticks = app.topic("ticks", Tick, key="key", key_type=str)
outside = itertools.count(1)

@app.actor
class Ticking(tr.Actor):
    count: int = 0

    @tr.process(ticks)
    def tick(self, tick: Tick, ctx: tr.Context[str]) -> None:
        self.count += 1
        if tick.n:
            self.count = next(outside)
"""


@pytest.fixture
def outcome(pytester: pytest.Pytester, request: pytest.FixtureRequest):
    """Runs a test module made of the app above and ``tests``; its outcome."""
    loaded = request.config.pluginmanager.has_plugin("tailrace")

    def run(tests, *arguments):
        pytester.makepyfile(APP + tests)
        plugin = () if loaded else ("-p", "tailrace.testing.plugin")
        return pytester.runpytest_inprocess(*plugin, "--strict-markers", *arguments)

    return run


def test_the_fixture_makes_harnesses_that_replay_and_close_by_themselves(outcome):
    result = outcome(
        """
made = []

def test_one(tailrace_harness):
    h, other = tailrace_harness(app), tailrace_harness(app, partitions=1, state="rocksdb")
    made.extend([h, other])
    h.send(ticks, Tick("a"))
    other.send(ticks, Tick("a"), Tick("b"))
    assert h.state(Ticking, "a").count == 1

def test_two():
    assert all(h.closed for h in made)
"""
    )
    result.assert_outcomes(passed=2)


DEPENDS = """
def test_depends_on_more_than_the_tape(tailrace_harness):
    tailrace_harness(app).send(ticks, Tick("a", 1))
"""


def test_a_test_whose_replay_differs_fails(outcome):
    result = outcome(DEPENDS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ReplayDivergedError: *the state of Ticking, key 'a'*"])


@pytest.mark.parametrize(
    "test",
    [
        DEPENDS.replace("tailrace_harness(app)", "tailrace_harness(app, replay=False)"),
        DEPENDS.replace(
            '    tailrace_harness(app).send(ticks, Tick("a", 1))',
            '    with tailrace_harness(app) as h:\n        h.send(ticks, Tick("a", 1))\n    assert h.closed',
        ),
    ],
    ids=["argument", "closed"],
)
def test_a_replay_can_be_left_out(outcome, test):
    outcome(test).assert_outcomes(passed=1)


def test_a_failed_test_fails_for_its_own_reason(outcome):
    result = outcome(
        """
def test_fails(tailrace_harness):
    h = tailrace_harness(app)
    h.send(ticks, Tick("a", 1))
    assert h.state(Ticking, "a") is None
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*ReplayDivergedError*")


RELOADED = """
def test_reloads(tailrace_harness):
    h = tailrace_harness(app, reload={given})
    assert h.reload is {expected}
"""


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [((), False, False), ((), True, True), (("--tailrace-reload",), False, True)],
)
def test_the_option_has_every_harness_reload(outcome, option, given, expected):
    outcome(RELOADED.format(given=given, expected=expected), *option).assert_outcomes(passed=1)


RACES = """
racing = tr.App("racing", partitions=1)
ones = racing.topic("ones", Tick, key="key", key_type=str)
twos = racing.topic("twos", Tick, key="key", key_type=str)

@racing.actor
class Racing(tr.Actor, order="arrival"):
    last: int = 0

    @tr.process(ones, twos)
    def set(self, tick: Tick, ctx: tr.Context[str]) -> None:
        self.last = tick.n

{mark}
def test_races(tailrace_harness):
    h = tailrace_harness(racing)
    h.send(ones, Tick("a", 1))
    h.send(twos, Tick("a", 2))
    assert h.state(Racing, "a").last == 2
"""
EXPLORED = "@pytest.mark.explore(schedules=20)"


def test_a_marked_test_fails_where_what_it_has_sent_depends_on_the_schedule(outcome):
    outcome(RACES.format(mark="")).assert_outcomes(passed=1)
    result = outcome(RACES.format(mark=EXPLORED))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ScheduleDependentError: 20 schedules of racing, 40 events: *"])
    result.stdout.fnmatch_lines(["*Racing 'a' (partition 0): * was handled before *"])


def test_a_marked_test_passes_where_nothing_depends_on_the_schedule(outcome):
    marked = RACES.format(mark="@pytest.mark.explore").replace("self.last = tick.n", "self.last += tick.n")
    outcome(marked.replace("last == 2", "last == 3")).assert_outcomes(passed=1)


def test_each_app_of_a_system_is_explored_by_itself(outcome):
    system = RACES.replace("h = tailrace_harness(racing)", "h = tailrace_system(app, racing)")
    system = system.replace("tailrace_harness", "tailrace_system").replace("h.state(", "h[racing].state(")
    outcome(system.format(mark="")).assert_outcomes(passed=1)
    result = outcome(system.format(mark=EXPLORED))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ScheduleDependentError: 20 schedules of racing, 40 events: *"])


def test_the_arguments_of_the_mark_are_those_of_explore(outcome):
    result = outcome(RACES.format(mark="@pytest.mark.explore(schedule=0)"))
    result.assert_outcomes(passed=1)
    result = outcome(RACES.format(mark="@pytest.mark.explore(nonsense=1)"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*TypeError: *nonsense*"])


def test_a_mark_on_a_test_that_makes_no_harness_is_an_error(outcome):
    result = outcome(f"\n{EXPLORED}\ndef test_nothing():\n    pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the mark explore is on a test that makes no harness*"])


def test_options_go_to_the_harness_and_wrong_ones_are_errors(outcome):
    result = outcome(
        """
def test_now(tailrace_harness):
    assert tailrace_harness(app, now_ms=5).now == 5

def test_wrong(tailrace_harness):
    with pytest.raises(TypeError, match="nonsense"):
        tailrace_harness(app, nonsense=1)
"""
    )
    result.assert_outcomes(passed=2)


SYSTEM = """
made = []

def test_one(tailrace_system, tailrace_harness):
    s, h = tailrace_system(app, racing, now_ms=5), tailrace_harness(app)
    made.extend([s, h])
    s.send(ticks, Tick("a"))
    s.send(ones, Tick("a", 7))
    assert (s[app].state(Ticking, "a").count, s[racing].state(Racing, "a").last) == (1, 7)
    assert s.now == 5

def test_two():
    assert all(one.closed for one in made)

def test_differs(tailrace_system):
    tailrace_system(racing, app).send(ticks, Tick("a", 1))

def test_is_left_out(tailrace_system):
    tailrace_system(racing, app, replay=False).send(ticks, Tick("a", 1))
"""


def test_there_is_a_fixture_for_systems_too(outcome):
    result = outcome(RACES.format(mark="") + SYSTEM)
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*ReplayDivergedError: *the state of Ticking, key 'a'*"])


def test_importing_the_plugin_brings_neither_the_harness_nor_a_store_with_it():
    code = (
        "import sys, tailrace.testing.plugin\n"
        "heavy = {'tailrace.testing.harness', 'tailrace.runtime', 'tailrace.state', 'rocksdict'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
