"""Archives of a log: its topics as Parquet files that any tool can read. Archive and log can be read as one history.

`layout` says what lies where, `files` moves records into Parquet and back, `writing` fills an archive from a log, and
`archived_log` wraps a log in its archive. Needs pyarrow.
"""

from tailrace.log.archive.archived_log import ArchivedLog
from tailrace.log.archive.layout import Archive, Chunk
from tailrace.log.archive.writing import ArchiveReport, ArchiveStatus, archive_log

__all__ = ["Archive", "ArchiveReport", "ArchiveStatus", "ArchivedLog", "Chunk", "archive_log"]
