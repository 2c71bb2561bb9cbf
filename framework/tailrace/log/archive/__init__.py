"""Archives of a log: its topics as Parquet files that any tool reads, and that are read as one history with the log.

`layout` says what lies where, `writing` moves records there, `reading` gives them back as a ``Log``. Needs pyarrow.
"""

from tailrace.log.archive.layout import Archive, Chunk
from tailrace.log.archive.places import Folder
from tailrace.log.archive.reading import ArchivedLog
from tailrace.log.archive.writing import ArchiveOptions, ArchiveReport, ArchiveStatus, archive_log

__all__ = [
    "Archive",
    "ArchiveOptions",
    "ArchiveReport",
    "ArchiveStatus",
    "ArchivedLog",
    "Chunk",
    "Folder",
    "archive_log",
]
