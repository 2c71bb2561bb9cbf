"""What the recorded processes do, and what they promise: run as ``python -m tests.power.recorded ROLE FOLDER POLICY``.

``service`` runs the first app of the soak until SIGTERM, twice. ``operator`` creates the log, appends events in many commits
while the service handles them, takes snapshots, and cleans the log. It prints a line when the service is to be stopped.

Each promise is a mark in the recording: where partitions end after a commit that has returned, and each published snapshot.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core.records import Output
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.preparing import prepare_log
from tailrace.state.snapshots import Snapshots
from tests.power.files import log_options
from tests.power.recording import mark
from tests.soak import feed
from tests.soak.apps import Step, first

APP = "tests.soak.apps:first"
INPUT = "steps"
LOG, STATE, SNAPSHOTS = "log", "state", "snapshots"
SEED = 1
STAGES = 3
COMMITS, EVENTS = 12, 25
"""Of the operator, in each stage."""
_PATIENCE_S = 120.0


def events() -> Iterator[Step]:
    """All events that are ever appended, in their order."""
    for event, _ in islice(feed.events(SEED, rich=False), STAGES * COMMITS * EVENTS):
        assert isinstance(event, Step)
        yield event


def service_options(root: Path, policy: Any, *, until_end: bool = False) -> ServiceOptions:
    """The service: it commits often, and looks often whether the log is to be cleaned."""
    return ServiceOptions(
        APP, root / LOG, root / STATE, commit_interval_ms=20, end_of_input=until_end,
        after_end=True, create_topics=True, log_options=log_options(policy),
    )  # fmt: skip


def promise_commits() -> None:
    """Mark each commit that has returned to its caller."""
    append_all, writer = EmbeddedLog.append_all, EmbeddedLog.writer

    def marked(
        call: Callable[..., Mapping[TopicPartition, int]],
    ) -> Callable[..., Mapping[TopicPartition, int]]:
        def marking(*arguments: Any, **options: Any) -> Mapping[TopicPartition, int]:
            ends = call(*arguments, **options)
            mark(json.dumps({f"{topic}/{partition}": end for (topic, partition), end in ends.items()}))
            return ends

        return marking

    def marking_writer(self: EmbeddedLog, transactional_id: str, /) -> Any:
        made: Any = writer(self, transactional_id)
        kind = type(made)
        if kind.commit.__name__ != "marking":
            kind.commit = marked(kind.commit)
        return made

    patched: Any = EmbeddedLog
    patched.append_all = marked(append_all)
    patched.writer = marking_writer


def operator(root: Path, policy: str) -> None:
    """Create the log, feed the service, take snapshots and clean."""
    with closing(EmbeddedLog(root / LOG, log_options(policy))) as log:
        prepare_log(log, first.plan(), create_declared=True)
        print("ready", flush=True)  # noqa: T201  # to the test that has started this
        source = events()
        for stage in range(STAGES):
            for number in range(COMMITS):
                log.append_all(outputs(islice(source, EVENTS)))
                if number % 3 == 2:
                    _wait_until(lambda: _is_read(log))
            _take_snapshot(log, root, incremental=stage > 0)
            log.clean()
            if stage != 1:  # it is stopped twice, and runs over the end of the stage in between
                print("stop", flush=True)  # noqa: T201  # as above
                sys.stdin.readline()


def service(root: Path, policy: str) -> None:
    """Run until SIGTERM, and again."""
    for _ in range(2):
        Host(service_options(root, policy), first.plan()).run()
        print("stopped", flush=True)  # noqa: T201  # to the test that has started this


def outputs(some: Iterable[Step]) -> list[Output]:
    """Events as records."""
    return [Output(INPUT, one.device.encode(), msgspec.json.encode(one), one.at) for one in some]


def _take_snapshot(log: EmbeddedLog, root: Path, *, incremental: bool) -> None:
    snapshots = Snapshots(str(root / SNAPSHOTS), first.plan().app)
    manifest = take_snapshot(first.plan(), log, snapshots, TakingOptions(incremental=incremental))
    mark(json.dumps({"snapshot": manifest.id}))


def _is_read(log: EmbeddedLog) -> bool:
    places = [TopicPartition(INPUT, number) for number in range(first.plan().partitions)]
    offsets = log.committed_offsets(first.plan().app, places)
    return all(offsets.get(place) == log.end_offset(*place) for place in places)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the service does not read on"
        time.sleep(0.01)


if __name__ == "__main__":
    _, role, folder, policy_name = sys.argv
    promise_commits()
    {"operator": operator, "service": service}[role](Path(folder), policy_name)
