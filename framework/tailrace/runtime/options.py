"""The options of a service."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from tailrace.core.engine.task import TaskSettings
from tailrace.http.listening import Listen
from tailrace.log.options import LogOptions
from tailrace.processes.environment import timezones_version
from tailrace.processes.logs import LogFormat
from tailrace.runtime.automatic_snapshots import SnapshotSchedule
from tailrace.runtime.housekeeping import LOOK_S
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.states import DEFAULT_MIB, shares_of
from tailrace.runtime.worker import WorkerSettings


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a service runs. Can be pickled."""

    app: str
    """``package.module:app``."""
    log: str | Path
    """The place of the log: a folder, or the URL of a Kafka cluster."""
    state: Path
    """The folder with one folder per task: ``<app>/<partition>``."""
    workers: int = 1
    commit_interval_ms: int = 1_000
    until_end: bool = False
    """Stop when all inputs have been read to their end and all of their consequences are done."""
    end_of_input: bool = False
    """The same, and the inputs end for good: all event-time timers fire before it stops."""
    after_end: bool = False
    """Continue an app whose inputs had ended for good."""
    drop_state: Collection[str] = ()
    """Actors and collections that are no longer declared, and whose state is deleted."""
    change_inputs: bool = False
    after_deleted: bool = False
    """Continue without records of the inputs that the log deleted before they were read."""
    accept_clock: bool = False
    """Start with a clock that is more than a day from its last reading; see ``clocks``."""
    from_snapshot: str = ""
    """``URI`` or ``URI#snapshot``: where an app that has no state yet begins; see ``snapshot_start``."""
    replace_state: bool = False
    """The snapshot replaces the existing state of the app."""
    replaced: int | None = None
    """After an upgrade: the generation of the changelog with the state that is replaced. The rows of the new one are in the log."""
    create_topics: bool = False
    """Create the log and the declared topics if they do not exist."""
    log_options: LogOptions = field(default_factory=LogOptions)
    log_format: LogFormat = "auto"
    look_s: float = LOOK_S
    """Interval of the checks whether the log must be cleaned."""
    snapshots: SnapshotSchedule | None = None
    """Interval and location of automatic snapshots, if any."""
    store_every: int | None = None
    """Number of commits after which the state folders are written; None: each commit, where tasks move each fifth."""
    memory_mib: int = DEFAULT_MIB
    """Memory for the state of a process, see ``states``."""
    handler_warning_ms: int = 5_000
    """A handler that runs for longer is logged, see ``handler_watch``."""
    grace_ms: int = 25_000
    """The longest time from the signal to stop to the end of the process, see ``handler_watch``."""
    standbys: int = 0
    """Where tasks move: number of standbys of each task, see ``standbys``."""
    downgrade: bool = False
    """Where tasks move: take tasks of a version over that has replaced this one, see ``task_notes``."""
    http: Listen | None = None
    """Where the process answers over HTTP, see ``http_answers``; None: nowhere. For one worker."""
    declared: frozenset[str] | None = None
    """What the app declares in the process that starts the others; see ``supervisor``."""

    @property
    def is_bounded(self) -> bool:
        """Whether the run stops by itself."""
        return self.until_end or self.end_of_input

    def worker_settings(self, tasks: int, *, tasks_move: bool = False) -> WorkerSettings:
        """The settings of a worker that has up to this number of tasks."""
        return WorkerSettings(
            bounded=self.is_bounded,
            change_inputs=self.change_inputs,
            tasks_move=tasks_move,
            partition=PartitionSettings(
                commit_interval_ms=self.commit_interval_ms,
                after_deleted=self.after_deleted,
                real_clock=True,
                bounded=self.is_bounded,
                # A snapshot may be of any age.
                accept_clock=self.accept_clock or bool(self.from_snapshot),
                after_end=self.after_end,
                drop=frozenset(self.drop_state),
                task=TaskSettings(
                    cache_bytes=shares_of(self.memory_mib).live_bytes // max(1, tasks),
                    timezones=timezones_version(),
                    scratch=TemporaryFile,
                    max_record_bytes=self.log_options.max_record_bytes,
                ),
            ),
        )
