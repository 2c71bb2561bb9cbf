"""The cookbook's join behind a change of keys, in two processes that come and go, is exact against a loop over its inputs."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from heapq import merge
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tailrace.core.engine.tape import decode_cut
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.kafka import KafkaLog
from tailrace.processes.app_loading import find_app
from tailrace.runtime.preparing import prepare_log
from tests.docs.page import ROOT, blocks, write
from tests.kafka.members import Members, await_tasks, runs
from tests.kafka.outside import Feeder, messages
from tests.soak.processes import wait_until

APP = "clicks:app"
MINUTE_MS = 60_000
DISORDER_MS = 5 * MINUTE_MS
WITHIN_MS = 30 * MINUTE_MS
START_MS = 1_700_000_000_000
STEP_MS = 5_000
TASKS = range(4)
USERS = [f"u{number}" for number in range(20)]
HISTORY = 15_000


def records(seed: int) -> Iterator[Output]:
    """Without end, in disorder: impressions, most with some clicks, in time or not, and clicks of no impression. One user has half of
    the clicks.
    """

    def impressions() -> Iterator[tuple[int, Output]]:
        random, at = Random(f"impressions {seed}"), START_MS
        for number in range(10**9):
            at += STEP_MS
            yield at + random.randrange(DISORDER_MS // 2), _impression(f"i{number}", at)

    def clicks() -> Iterator[tuple[int, Output]]:
        random, at = Random(f"clicks {seed}"), START_MS
        for number in range(10**9):
            at += STEP_MS
            # Of an impression of the last 40 minutes; a few of one that comes later, or never.
            shown = number - random.randrange(-20, 40 * MINUTE_MS // STEP_MS)
            user = "u0" if number % 2 else random.choice(USERS)
            yield at + random.randrange(DISORDER_MS // 2), _click(user, f"i{shown}", at)

    for _, record in merge(impressions(), clicks(), key=lambda pair: pair[0]):
        yield record


def _impression(number: str, at: int) -> Output:
    return Output("impressions", number.encode(), msgspec.json.encode({"id": number, "at": at}), at)


def _click(user: str, number: str, at: int) -> Output:
    value = msgspec.json.encode({"user": user, "impression": number, "at": at})
    return Output("clicks", user.encode(), value, at)


def last_records(fed: int) -> Iterator[Output]:
    """They bring each partition past all timers."""
    at = START_MS + fed * STEP_MS + 2 * WITHIN_MS
    numbers = {partition_of(b"last%d" % number, len(TASKS)): f"last{number}" for number in range(30)}
    users = {partition_of(user.encode(), len(TASKS)): user for user in USERS}
    for task in TASKS:
        yield _impression(numbers[task], at)
        yield _click(users[task], "none", at)


def expected(shown: list[list[dict[str, Any]]], clicked: list[list[dict[str, Any]]]) -> Counter[Any]:
    """The oracle: by the times of all impressions and clicks."""
    until = min(max(one["at"] for one in partition) for partition in (*shown, *clicked)) - DISORDER_MS - 1
    clicks: dict[str, list[tuple[int, str]]] = {}
    for one in (one for partition in clicked for one in partition):
        clicks.setdefault(one["impression"], []).append((one["at"], one["user"]))
    found: Counter[Any] = Counter()
    for one in (one for partition in shown for one in partition):
        number, at = one["id"], one["at"]
        in_time = [click for click in clicks.get(number, ()) if at <= click[0] <= at + WITHIN_MS]
        for clicked_at, user in in_time:
            if clicked_at <= until:
                found[number, user, clicked_at - at] += 1
        if not in_time and at + WITHIN_MS <= until:
            found[number, None, None] += 1
    return found


@pytest.mark.long
@pytest.mark.parametrize("live", [False, True], ids=["catch-up", "live"])
def test_the_join_of_the_cookbook_is_exact_while_its_processes_come_and_go(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    page = (ROOT / "docs" / "cookbook" / "join.md").read_text("utf-8")
    write(next(block for block in blocks(page) if block.text.startswith("# clicks.py")), tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    path = os.pathsep.join(map(str, (tmp_path, ROOT / "framework", ROOT)))
    plan = find_app(APP).plan()
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")

    def values(topic: str) -> list[list[dict[str, Any]]]:
        found = messages(bootstrap, prefix + topic)
        return [[msgspec.json.decode(one.value() or b"") for one in partition] for partition in found]

    def outcomes() -> Counter[Any]:
        found = (one for partition in values("outcomes") for one in partition)
        return Counter((one["impression"], one["user"], one["after_ms"]) for one in found)

    session = {"TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": "6000", "PYTHONPATH": path}
    with (
        closing(KafkaLog(kafka_url)) as log,
        closing(Members(kafka_url, tmp_path, session)) as members,
        closing(Feeder(bootstrap, prefix, records(seed=int(live)), per_second=400)) as feeder,
    ):
        prepare_log(log, plan, create_declared=True)
        if live:
            feeder.start()
        else:
            feeder.some(HISTORY)
            feeder.write(last_records(feeder.fed))
        one, two = (members.start(APP, name) for name in ("one", "two"))
        for process in (one, two):
            await_tasks(process, 1)
        before = len(runs(one))
        two.kill()
        three = members.start(APP, "three")
        wait_until(
            lambda: len(runs(one)) + len(runs(three)) > before, "others have the tasks of the killed one"
        )
        await_tasks(three, 1)
        one.signal(signal.SIGTERM)
        await_tasks(three, len(TASKS))
        assert one.ended() == 0, one.text()[-3_000:]
        if live:
            feeder.stop()
            feeder.write(last_records(feeder.fed))
        wanted = expected(values("impressions"), values("clicks"))

        def is_there() -> bool:
            assert three.code() is None, three.text()[-3_000:]
            return outcomes().total() >= wanted.total()

        wait_until(is_there, "all impressions are decided")
        three.signal(signal.SIGTERM)
        assert three.ended() == 0
        found = outcomes()
        assert (wanted - found, found - wanted) == (Counter(), Counter())
        assert wanted.total() > 1_000
        assert len({after is None for _, _, after in wanted}) == 2
        history = AppHistory(plan, log)
        cuts = [history.committed(number).cut for number in TASKS]
        assert sum(decode_cut(cut or b"").totals.late for cut in cuts) == 0
