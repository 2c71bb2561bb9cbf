"""Chains of upgrades: which versions may run, only the one that has the state now, and those that never had it; and the way back."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError, ReplacedVersionError
from tailrace.history.reading.upgrades import Upgrade, UpgradeStep, check_version
from tailrace.lab.upgrade.driver import Upgrading
from tests.lab.upgrade import test_bad_input as bad
from tests.lab.upgrade.stage import BUG, OLD, Producer, check, module_of, wanted_in

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
    """It was made in canonical order, so its state stands at another time of the clock than the one that was kept."""
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
    check(asked.log, producer.clicks, "onononon"[: len(chain) + 1])
