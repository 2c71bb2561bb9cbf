"""Snapshots: the state of an app at a cut, as Parquet tables and a manifest that any tool can read.

`places` reaches the folder wherever it lies, `tables` says which row becomes which column, `writing` and
`reading` move rows, `manifest` says what belongs to a snapshot, `catalogue` publishes, lists, deletes. Needs
pyarrow when used.
"""

from tailrace.state.snapshots.catalogue import LATEST, Draft, Snapshots, which_where
from tailrace.state.snapshots.manifest import FORMAT, FileInfo, Manifest, Source, TaskEntry
from tailrace.state.snapshots.places import Place
from tailrace.state.snapshots.reading import Problem, Snapshot
from tailrace.state.snapshots.tables import DELETED, MESSAGES, STATE, TIMERS, schema_of
from tailrace.state.snapshots.writing import write_task

__all__ = [
    "DELETED",
    "FORMAT",
    "LATEST",
    "MESSAGES",
    "STATE",
    "TIMERS",
    "Draft",
    "FileInfo",
    "Manifest",
    "Place",
    "Problem",
    "Snapshot",
    "Snapshots",
    "Source",
    "TaskEntry",
    "schema_of",
    "which_where",
    "write_task",
]
