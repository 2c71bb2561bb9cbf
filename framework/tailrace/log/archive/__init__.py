"""Archives of a log: its topics as Parquet files that any tool can read. Archive and log can be read as one history.

`layout` says what lies where, `writing` moves records there, `reading` gives them back as a ``Log``. Needs pyarrow.
"""

from tailrace.log.archive.layout import Archive, Chunk
from tailrace.log.archive.reading import ArchivedLog
from tailrace.log.archive.writing import ArchiveOptions, ArchiveReport, ArchiveStatus, archive_log

__all__ = [
    "Archive",
    "ArchiveOptions",
    "ArchiveReport",
    "ArchiveStatus",
    "ArchivedLog",
    "Chunk",
    "archive_log",
]
