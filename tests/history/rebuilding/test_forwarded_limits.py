"""Offset limits of a topic with ``repartition=True``: a task that reaches none gets forwards from behind the
limit.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.engine import tape
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import UsageError
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived, priced
from tests.history.rebuilding.lived import done, request

HIDDEN = "tests.history.rebuilding.priced:hidden"
INNER = "priced.orders.by-key"
UNTIL = {"orders": {0: 5, 1: 5}}


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service with forty orders in one partition, which go to items in both."""
    folder = tmp_path_factory.mktemp("ordered")
    lived.append(
        folder,
        [priced.record("prices", priced.Price(f"item-{number}", 2, 0)) for number in range(8)],
        {"prices": 2, "orders": 2},
    )
    lived.live_on(folder, HIDDEN)
    orders = (priced.Order(f"order-{one}", f"item-{one % 8}", 1, 100 * one) for one in range(40))
    lived.append(folder, [priced.record("orders", one)._replace(key=b"one key") for one in orders], {})
    lived.live_on(folder, HIDDEN)
    return folder


def empty(folder: Path) -> int:
    """The partition without orders."""
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        ends = [log.end_offset("orders", number) for number in range(2)]
        assert sorted(ends) == [0, 40]
        assert all(log.end_offset(INNER, number) for number in range(2))
    return ends.index(0)


def test_a_task_that_only_gets_forwards_is_not_run_past_the_limit_of_the_others(ordered: Path) -> None:
    said = f"partition {empty(ordered)} does not reach offset 5 of 'orders', so nothing limits it"
    with pytest.raises(UsageError, match=said) as refused:
        rebuild(request(ordered, HIDDEN, until=Limits(UNTIL)), LocalEngine(1))
    assert f"--until-offset {INNER}=OFFSET" in str(refused.value)
    with closing(EmbeddedLog(ordered / "log", create=False)) as log, pytest.raises(UsageError, match=said):
        replay(find_app(HIDDEN).plan(), log, ReplayOptions(limits=Limits(UNTIL)))


def test_in_canonical_order_only_what_is_before_the_limit_is_forwarded(ordered: Path) -> None:
    _, found = done(ordered, HIDDEN, until=Limits(UNTIL), order="canonical")
    cuts = [tape.decode_cut(one.cut) for one in found.manifest.tasks]
    assert sum(cut.positions["orders"] for cut in cuts) == 5
    assert sum(cut.totals.records for cut in cuts) == 8 + 5 + 5, "prices, orders, and each order once more"


def test_with_a_limit_of_the_hidden_topic_every_task_ends_at_a_limit(ordered: Path) -> None:
    until = {**UNTIL, INNER: {0: 2, 1: 2}}
    _, found = done(ordered, HIDDEN, until=Limits(until))
    for one in found.manifest.tasks:
        positions = tape.decode_cut(one.cut).positions
        assert positions["orders"] <= 5
        assert positions[INNER] <= 2


def test_a_limit_that_no_task_has_passed_is_only_noted(ordered: Path) -> None:
    until = {"orders": {0: 40, 1: 40}}
    number = empty(ordered)
    report, _ = done(ordered, HIDDEN, until=Limits(until))
    assert (
        f"the last commit of partition {number} is before the offset limit: orders ends at 0 instead of 40; "
        "it runs to this "
        "commit, with all that other partitions had sent to it" in report.notes
    )


def test_a_limit_of_one_partition_leaves_the_others_whole(ordered: Path) -> None:
    number = 1 - empty(ordered)
    _, found = done(ordered, HIDDEN, until=Limits({"orders": {number: 5}}))
    assert tape.decode_cut(found.manifest.task(number).cut).positions["orders"] <= 5
