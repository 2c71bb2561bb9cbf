"""An embedded log that passes a hook at the operations that can be struck."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tailrace.core.records import RawOutput
from tailrace.log import TopicPartition, Writer
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions


class StruckLog(EmbeddedLog):
    """An embedded log that passes a hook at the operations that can be struck."""

    def __init__(self, path: Path, on_operation: Callable[[str], None], options: LogOptions) -> None:
        super().__init__(path, options)
        self._on_operation = on_operation

    def writer(self, transactional_id: str, /) -> Writer:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # it wraps the other
        self._on_operation("take-over")
        return StruckWriter(super().writer(transactional_id), self._on_operation)

    def end_offset(self, topic: str, partition: int, /) -> int:
        self._on_operation("query")
        return super().end_offset(topic, partition)


class StruckWriter:
    """A writer of that log."""

    shared, lost = None, False

    def __init__(self, writer: Writer, on_operation: Callable[[str], None]) -> None:
        self.transactional_id = writer.transactional_id
        self.inner = writer
        self._on_operation = on_operation

    def append(self, outputs: Iterable[RawOutput], /, partition: int | None = None) -> None:
        self._on_operation("append")
        self.inner.append(outputs, partition)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        self._on_operation("commit")
        ends = self.inner.commit(offsets, group, watermarks)
        self._on_operation("committed")
        return ends

    def abort(self) -> None:
        self.inner.abort()

    def close(self) -> None:
        self.inner.close()
