"""Files of a rebuild that is under way: frames of msgpack, each compressed.

::

    frame    compressed length, original length, checksum; then the payload
    end      three zeros: a file without them has lost its end, for instance in a power cut

A file name carries the attempt that wrote the file. Units read only files that a result names, and a result
is written after its files are closed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import msgspec

from tailrace.core.errors import CorruptStateError
from tailrace.state.failures import state_failures
from tailrace.state.snapshots.arrow import pa

_HEAD = struct.Struct("<III")
_END = _HEAD.pack(0, 0, 0)
_CODEC = "lz4"
_BUFFER = 1 << 20

T = TypeVar("T")


class BlockWriter:
    """Writes frames to a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self._codec: Any = pa.Codec(_CODEC)
        with state_failures(path, "opening a file of blocks"):
            self._file = path.open("wb", _BUFFER)

    def write(self, value: Any) -> None:
        """Append one frame."""
        plain = self._encode(value)
        packed: bytes = self._codec.compress(plain, asbytes=True)
        with state_failures(self.path, "writing a block"):
            self._file.write(_HEAD.pack(len(packed), len(plain), zlib.crc32(packed)))
            self._file.write(packed)

    def close(self) -> None:
        """End the file, if it is open."""
        if self._file.closed:
            return
        with state_failures(self.path, "writing blocks"), self._file:
            self._file.write(_END)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self.path.unlink(missing_ok=True)


class BlockReader(Generic[T]):
    """Reads the frames of a file as values of one type."""

    def __init__(self, path: Path, type: Any) -> None:
        self._path = path
        self._decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(type).decode
        self._codec: Any = pa.Codec(_CODEC)

    def __iter__(self) -> Iterator[T]:
        with state_failures(self._path, "opening a file of blocks"):
            file = self._path.open("rb", _BUFFER)
        with file:
            while (head := file.read(_HEAD.size)) != _END:
                if len(head) < _HEAD.size:
                    raise self._corrupt("a file of blocks of the rebuild has lost its end")
                length, plain, checksum = _HEAD.unpack(head)
                packed = file.read(length)
                if zlib.crc32(packed) != checksum:
                    raise self._corrupt("a block of the rebuild does not fit its checksum")
                yield self._decode(self._codec.decompress(packed, plain, asbytes=True))

    def _corrupt(self, what: str) -> CorruptStateError:
        return CorruptStateError(what, path=str(self._path), hint="Run it again with --restart.")
