"""What must hold after a power cut: ``check`` starts everything on a crash state and compares the results with an oracle.

The oracle (tests/soak/oracle.py) imports nothing of the engine. It computes from the inputs that are left in the log what the
service must have emitted. Nothing is taken from the recorded run except the events that were appended, and the promises.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tailrace.core.errors import LogUnavailableError
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.opening import open_log
from tailrace.runtime.bounded import BoundedRun
from tailrace.runtime.companions import Companion
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare
from tailrace.state.snapshots import Snapshots
from tests.power.files import log_options
from tests.power.recorded import INPUT, LOG, SNAPSHOTS, STATE, events, outputs, service_options
from tests.soak import oracle
from tests.soak.apps import Closed, Passed, Step, Told, first
from tests.soak.checks import check_numbers, check_replay, decoded, flat, read, same

PLAN = first.plan()
_PATIENCE_S = 60.0


def check(root: Path, policy: str, promised: Sequence[str], durable: Sequence[str] = ()) -> None:
    """Start a service on a crash state and check everything. Raises AssertionError or TailraceError with what is wrong.

    ``promised``: the marks before the cut, from ``recorded``; ``durable``: those of them that no power cut may break.
    """
    _check_log(root, _ends(promised), _ends(durable), policy)
    _check_snapshots(root, [json.loads(one)["snapshot"] for one in promised if "snapshot" in one])
    _run_to_end(service_options(root, policy, until_end=True))
    with closing(EmbeddedLog(root / LOG, log_options(policy), create=False)) as log:
        log.verify()
        _check_results(log, root / STATE)


def _run_to_end(options: ServiceOptions) -> None:
    """Run the service until it has handled all inputs; alone, but without the process that cleans the log."""
    with closing(open_log(options.log, options.log_options, create=True)) as log:
        prepare(log, options, PLAN)
    seldom = replace(options, look_s=1e9)
    Host(seldom, PLAN, [BoundedRun(), _Deadline()], share=range(PLAN.partitions)).run()


class _Deadline(Companion):
    """Ends a run that takes too long."""

    essential = True

    def __init__(self) -> None:
        self._deadline_s = time.monotonic() + _PATIENCE_S

    def look(self) -> None:
        assert time.monotonic() < self._deadline_s, "the service does not come to its end"


def _ends(promised: Sequence[str]) -> dict[str, int]:
    """By partition, the highest end that was promised."""
    ends: dict[str, int] = {}
    for text in promised:
        if "snapshot" not in text:
            for name, end in json.loads(text).items():
                ends[name] = max(ends.get(name, 0), end)
    return ends


def _check_log(root: Path, promised: dict[str, int], durable: dict[str, int], policy: str) -> None:
    """The log opens, is whole, and holds a beginning of what was appended, with all that was durable."""
    try:
        log = EmbeddedLog(root / LOG, log_options(policy), create=False)
    except LogUnavailableError:
        if durable:
            raise
        return  # it had not been created yet
    with closing(log):
        log.verify()
        known = log.topics()
        for name in promised:
            topic, _, number = name.rpartition("/")
            found = log.end_offset(topic, int(number)) if topic in known else 0
            assert found >= durable.get(name, 0), f"{name} ends at {found}, and {durable[name]} was durable"
        if INPUT in known:
            _check_inputs(log)


def _check_inputs(log: EmbeddedLog) -> None:
    """Each partition holds a beginning of what was appended to it: nothing torn, no gap, nothing twice."""
    appended = [(one.key, one.value, one.timestamp_ms) for one in outputs(events())]
    order = {one: number for number, one in enumerate(appended)}
    found = [[(one.key, one.value, one.timestamp_ms) for one in records] for records in read(log, INPUT)]
    last = max((order[one] for one in flat(found)), default=-1)
    assert sum(map(len, found)) == last + 1, "the inputs have a gap, or a record twice"
    for records in found:
        places = [order[one] for one in records]
        assert places == sorted(places), "inputs are out of order"


def _check_snapshots(root: Path, promised: Sequence[str]) -> None:
    """Every snapshot that is visible is whole, and every one that was published is visible."""
    snapshots = Snapshots(str(root / SNAPSHOTS), PLAN.app)
    visible = [one.id for one in snapshots.list()]
    assert set(promised) <= set(visible), f"snapshots are gone: {sorted(set(promised) - set(visible))}"
    for name in visible:
        problems = snapshots.open(name).verify()
        assert not problems, f"snapshot {name}: {problems}"


def _check_results(log: EmbeddedLog, state: Path) -> None:
    """Outputs and state are those of the oracle and of a replay."""
    assert not flat(read(log, PLAN.dead_letters_topic)), "there are dead letters"
    check_numbers(log, PLAN)
    steps = decoded(log, INPUT, Step)
    expected = oracle.of_first(steps, [], oracle.late_steps(steps), rich=False)
    same(Counter(flat(decoded(log, "first-told", Told))), expected.told, "what the service told")
    same(Counter(flat(decoded(log, "first-closed", Closed))), expected.closed, "the windows that were closed")
    passed: dict[str, list[Passed]] = {}
    for one in flat(decoded(log, "passed", Passed)):
        passed.setdefault(one.device, []).append(one)
    assert passed == expected.passed, "the steps that were passed on"
    check_replay(log, PLAN, state)
