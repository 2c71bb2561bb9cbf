"""Cases of the embedded log alone: records of a hundred bytes, appended and read in batches.

Each case is compared with the minimum work of any such log: the same fields are encoded batch by batch in one call, written
with a checksum to one file, and read back.
"""

from __future__ import annotations

import gc
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.measure import Pairs, Row, Scale, alternating
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog

BATCH = 10_000
"""Number of records appended or read at once."""
BATCHES_PER_COMMIT = 10
LEAST = 1_000_000


def log(scale: Scale) -> list[Row]:
    """Append and read records without headers, then with one header each, like the outputs of a task."""
    plain = [
        Output("records", b"key-%d" % (n % scale.keys), b"%090d" % n, n) for n in range(scale.log_records)
    ]
    headed = [one._replace(headers=(("tailrace-origin", b"task/0:%d" % n),)) for n, one in enumerate(plain)]
    gc.freeze()  # the collector must not scan the objects of the benchmark itself
    try:
        return [*_both("no header", plain, scale), *_both("a numbered origin header each", headed, scale)]
    finally:
        gc.unfreeze()


def _both(name: str, records: list[Output], scale: Scale) -> Iterator[Row]:
    count = len(records)
    with tempfile.TemporaryDirectory() as folder:
        place, file = Path(folder), Path(folder) / "file"
        kept = _append(place, records)
        appending = alternating(
            count, lambda: _append(place, records), lambda: _write(file, records), scale.repeats
        )
        yield _row(f"log, append: {name}", appending)
        yield _row(
            f"log, read: {name}", alternating(count, lambda: _read(kept), lambda: _load(file), scale.repeats)
        )


def _row(case: str, pairs: Pairs) -> Row:
    return Row(
        case=case,
        measured=pairs.case,
        unit="records/s",
        target=f"{LEAST:,} or more",
        met=pairs.case >= LEAST,
        ratio=pairs.ratio,
        compared_with="one file, encoded and with a checksum by the batch",
        compared=pairs.baseline,
    )


def _append(place: Path, records: Sequence[Output]) -> Path:
    """Append to a new log, which is kept."""
    folder = Path(tempfile.mkdtemp(dir=place))
    log = EmbeddedLog(folder)
    log.create_topic("records", TopicSettings(1))
    writer = log.writer("bench")
    for number, at in enumerate(range(0, len(records), BATCH), 1):
        writer.append(records[at : at + BATCH])
        if number % BATCHES_PER_COMMIT == 0:
            writer.commit()
    writer.commit()
    log.close()
    return folder


def _read(folder: Path) -> int:
    log = EmbeddedLog(folder)
    reader = log.reader({TopicPartition("records", 0): 0})
    count = 0
    while records := reader.fetch("records", 0, BATCH).records:
        count += len(records)
    log.close()
    return count


def _write(file: Path, records: Sequence[Output]) -> None:
    encode = msgspec.msgpack.Encoder().encode
    with file.open("wb") as out:
        for at in range(0, len(records), BATCH):
            data = encode(records[at : at + BATCH])
            out.write(len(data).to_bytes(4) + zlib.crc32(data).to_bytes(4))
            out.write(data)


def _load(file: Path) -> int:
    decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode
    count = 0
    with file.open("rb") as source:
        while head := source.read(8):
            data = source.read(int.from_bytes(head[:4]))
            assert zlib.crc32(data) == int.from_bytes(head[4:])
            count += len(decode(data))
    return count
