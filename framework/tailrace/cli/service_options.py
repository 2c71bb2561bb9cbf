"""The options of ``tailrace run``, in groups."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from tailrace.cli.arguments import from_snapshot_option, outside_of_log, packed
from tailrace.cli.settings import refuse_typed, setting
from tailrace.cli.value_types import DurationType
from tailrace.core.extras import check_installed
from tailrace.core.records import MAX_RECORD_BYTES
from tailrace.runtime.automatic_snapshots import SnapshotSchedule
from tailrace.runtime.states import DEFAULT_MIB, LEAST_MIB

_LEAST_SNAPSHOT_MS = 1_000
"""Each snapshot is taken by a new process, and its start takes time."""


class AutomaticSnapshots(NamedTuple):
    """When and where snapshots are taken automatically."""

    snapshots_at: str | None
    snapshot_every: int
    snapshot_keep: int

    def schedule(self, log: Path | str) -> SnapshotSchedule | None:
        """The schedule; None without ``--snapshots``.

        Raises:
            click.UsageError: The place is in the log's folder, or an option goes with ``--snapshots``.
            MissingExtraError: pyarrow is not installed, so every snapshot would fail.
        """
        if self.snapshots_at is None:
            refuse_typed(("snapshot_every", "snapshot_keep"), "goes with --snapshots")
            return None
        outside_of_log(self.snapshots_at, log, "--snapshots")
        check_installed("snapshots", "parquet", "pyarrow")
        return SnapshotSchedule(self.snapshots_at, self.snapshot_every / 1_000, self.snapshot_keep)


tuning_options = packed(
    "tuning",
    dict,
    setting(
        "--commit-interval",
        "commit_interval_ms",
        type=DurationType(least_ms=1),
        default="1s",
        show_default=True,
        help="Time between two commits.",
    ),
    setting(
        "--store-every",
        type=click.IntRange(1),
        help="Number of commits after which the state folders are written; after a crash, as many are read "
        "from the log. Default: 1, on Kafka 5.",
    ),
    setting(
        "--memory-mib",
        type=click.IntRange(LEAST_MIB),
        default=DEFAULT_MIB,
        show_default=True,
        help="MiB of memory for the state of a process: live keys, state folders, waiting commits.",
    ),
    setting(
        "--max-record-bytes",
        type=click.IntRange(1_000, 1 << 30),
        default=MAX_RECORD_BYTES,
        show_default=True,
        help="Size limit of an event in the log, including its key.",
    ),
    setting(
        "--fsync",
        type=click.Choice(["interval", "commit"]),
        default="interval",
        show_default=True,
        help="When commits are on the disk, for power losses: at intervals of a second, or at every commit.",
    ),
    setting(
        "--handler-warning",
        "handler_warning_ms",
        type=DurationType(least_ms=10),
        default="5s",
        show_default=True,
        help="Log a handler that runs for longer, with its key and record.",
    ),
    setting(
        "--grace",
        "grace_ms",
        type=DurationType(least_ms=100),
        default="25s",
        show_default=True,
        help="Longest time from SIGTERM to the end. A handler that still runs then is given up, without a commit.",
    ),
)
"""Options that trade speed, memory and durability, and the limits of handlers: those of ``ServiceOptions`` and of ``LogOptions``."""
change_options = packed(
    "changes",
    dict,
    click.option("--change-inputs", is_flag=True, help="Allow the app to read other topics than before."),
    click.option(
        "--after-deleted",
        is_flag=True,
        help="Skip records that the log deleted before the app read them, or continue though an input lost its end.",
    ),
    click.option(
        "--accept-clock",
        is_flag=True,
        help="Start although the clock is more than a day from the app's last reading of it.",
    ),
    click.option(
        "--after-end", is_flag=True, help="Continue an app whose inputs were ended with --end-of-input."
    ),
    click.option(
        "--drop-state",
        multiple=True,
        metavar="NAME",
        help="Drop state that the app no longer declares: of an actor (Actor), a field (Actor.field), or "
        "pending timers (Actor.timers:family).",
    ),
    from_snapshot_option,
    click.option(
        "--replace-state", is_flag=True, help="With --from-snapshot: replace the state that the app has."
    ),
)
"""What the service may change or leave out when it starts: options of ``ServiceOptions``."""
snapshot_options = packed(
    "automatic",
    AutomaticSnapshots,
    setting(
        "--snapshots",
        "snapshots_at",
        metavar="URI",
        help="Take snapshots there automatically, one every --snapshot-every.",
    ),
    setting(
        "--snapshot-every",
        type=DurationType(least_ms=_LEAST_SNAPSHOT_MS),
        default="10m",
        show_default=True,
        help="With --snapshots: time between two snapshots.",
    ),
    setting(
        "--snapshot-keep",
        type=click.IntRange(1),
        default=5,
        show_default=True,
        help="With --snapshots: number of snapshots to keep. Savepoints, and snapshots that others build on, "
        "are never deleted.",
    ),
)
