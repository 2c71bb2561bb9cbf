"""Chains of upgrades: which versions may run, only the one that has the state now, and those that never had it; and the way back."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError, ReplacedVersionError
from tailrace.history.dead_letters.redriving import open_letters
from tailrace.history.reading.upgrades import Upgrade, UpgradeStep, check_version
from tailrace.lab.upgrade.driver import Upgrading, Wanted
from tailrace.log.opening import open_log
from tests.lab.upgrade import test_bad_input as bad
from tests.lab.upgrade.stage import BUG, OLD, Producer, check, last_totals, module_of, outputs, wanted_in

begun, producer = bad.begun, bad.producer
STEPS: tuple[UpgradeStep, ...] = ("begun", "fenced", "ready", "done")


def may_run(version: str, found: Upgrade | None) -> bool:
    try:
        check_version(plan(version), found)
    except ReplacedVersionError:
        return False
    return True


def plan(version: str) -> Plan:
    """An app of this version."""
    return tr.App("versions", version=version).plan()


@pytest.mark.parametrize("seed", range(50))
def test_a_replaced_version_is_refused_until_an_upgrade_leads_back_to_it(seed: int) -> None:
    """Upgrades at random, done or given up; after each record, each version is judged by the whole history."""
    chance, current, replaced, found = Random(seed), "1", set[str](), None
    for number in range(6):
        new = chance.choice([one for one in "12345" if one != current])
        before = () if found is None else found.replaced_now
        record = Upgrade(
            step="begun", id=str(number), old=current, new=new, snapshots="", code="", before=number,
            generation=number + 1, replaced=before,
        )  # fmt: skip
        reached = STEPS[: chance.randrange(1, 5)]
        for step in reached:
            found = replace(record, step=step)
            led, shut = step in ("ready", "done"), step in ("fenced", "ready")
            for one in "123456":
                waits_or_runs = one == new
                runs = not shut and one not in replaced and not (led and one == current)
                assert may_run(one, found) == (waits_or_runs or runs), (one, found)
        if "ready" in reached:
            replaced, current = {*replaced, current} - {new}, new
            found = replace(record, step="done")
        else:
            found = replace(record, step="given up")
        assert (found.version, {*found.replaced_now}) == (current, replaced)
        assert [one for one in "123456" if not may_run(one, found)] == sorted(replaced)


def test_it_is_refused_while_another_upgrade_is_open_and_after_it_was_given_up(
    producer: Producer, tmp_path: Path
) -> None:
    """A supervisor may start it again at any time."""
    second, third = (bad.new_version(tmp_path) for _ in range(2))
    bad.finish(wanted_in(tmp_path, second), tmp_path, producer)
    with (
        pytest.raises(OptionError, match="version '1' of 'clicking' is not the one that runs"),
        ExitStack() as stack,
    ):
        Upgrading(wanted_in(tmp_path, third), stack).run()
    asked = replace(wanted_in(tmp_path, third), old=second)
    bad.upgrade(asked, until="begun")
    with pytest.raises(ReplacedVersionError, match="has replaced version '1'"):
        bad.serve(OLD, tmp_path)
    with ExitStack() as stack:
        assert Upgrading(asked, stack).cancel()
    producer.more(20)
    with pytest.raises(ReplacedVersionError, match="has replaced version '1'"):
        bad.serve(OLD, tmp_path)
    bad.serve(module_of(second), tmp_path, ends=True)


def test_the_second_upgrade_can_be_rolled_back(producer: Producer, tmp_path: Path) -> None:
    """It was made in stages, so its state stands at another time of the clock than the one that was kept."""
    second = bad.new_version(tmp_path)
    third = bad.new_version(tmp_path, ("if True:", BUG))
    chain = [
        wanted_in(tmp_path, second),
        replace(wanted_in(tmp_path, third), old=second),
        replace(wanted_in(tmp_path, third, rollback=True), old=second),
        replace(wanted_in(tmp_path, third), old=second),
        replace(wanted_in(tmp_path, third, rollback=True), old=second),
    ]
    for asked in chain:
        bad.upgrade(asked)
        producer.more(200)
        runs = second if asked.rollback else module_of(asked.new)
        bad.serve(module_of(runs), tmp_path)
        with ExitStack() as stack:
            assert Upgrading(asked, stack).run().done
    bad.serve(module_of(second), tmp_path, ends=True)
    check(tmp_path / "log", producer.clicks, "onononon"[: len(chain) + 1])


def test_dead_letters_stay_open_whatever_version_has_handled_their_events(
    producer: Producer, tmp_path: Path
) -> None:
    """Whoever drops them sees which version runs."""
    late = max(one.at for one in producer.clicks)
    fails = f"if {late} < event.at <= {late + 500} and event.amount % 5 == 0:\n            raise ValueError\n        if True:"
    letters = ("partitions=2", 'partitions=2, on_error="dead-letter-all"')
    second = bad.new_version(tmp_path, letters, ("if True:", fails))
    third = bad.new_version(tmp_path, letters)
    log = tmp_path / "log"

    def go(asked: Wanted, runs: str) -> int:
        bad.upgrade(asked)
        bad.serve(module_of(runs), tmp_path)
        with ExitStack() as stack:
            assert Upgrading(asked, stack).run().done
        producer.more(50)
        bad.serve(module_of(runs), tmp_path)
        with closing(open_log(log)) as opened:
            return sum(1 for _ in open_letters(opened, "clicking"))

    failed = go(wanted_in(tmp_path, second), second)
    assert failed > 3
    asked = replace(wanted_in(tmp_path, third), old=second)
    assert go(asked, third) == failed
    assert go(replace(asked, rollback=True), second) == failed
    assert go(asked, third) == failed
    fourth = bad.new_version(tmp_path, letters)
    assert go(replace(wanted_in(tmp_path, fourth), old=third), fourth) == failed
    bad.serve(module_of(fourth), tmp_path, ends=True)
    last = {one.user: one.total for part in outputs(log, "later") for one in part}
    assert last == last_totals(producer.clicks, forgets=False)
