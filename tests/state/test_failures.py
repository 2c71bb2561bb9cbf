"""What RocksDB and the operating system say becomes the error that names what to do."""

import errno
import os
from pathlib import Path

import pytest

from tailrace.core.errors import CorruptStateError, StateFolderError, StateInUseError, StateUnavailableError
from tailrace.state.failures import as_state_error

PATH = Path("states") / "flights" / "3"


@pytest.mark.parametrize(
    ("said", "kind", "word"),
    [
        ("IO error: No space left on device: While appending to file", StateUnavailableError, "full"),
        ("IO error: File too large: While appending to file", StateUnavailableError, "size"),
        ("IO error: Read-only file system: While open a file", StateUnavailableError, "read-only"),
        ("IO error: While mkdir: LOCK: Permission denied", StateUnavailableError, "permission"),
        ("Corruption: Can't access /9.sst: IO error: Permission denied", StateUnavailableError, "permission"),
        ("IO error: Input/output error: While pread", StateUnavailableError, "disk fails"),
        ("IO error: lock hold by current process: LOCK: No locks available", StateInUseError, "in use"),
        ("IO error: While lock file: LOCK: Resource temporarily unavailable", StateInUseError, "in use"),
        ("Corruption: block checksum mismatch: stored = 1", CorruptStateError, "checksum mismatch"),
        ("Corruption: Can't access /9.sst: IO error: No such file or directory", CorruptStateError, "9.sst"),
        ("Invalid argument: CURRENT: does not exist", CorruptStateError, "CURRENT"),
        ("Busy: something that RocksDB has not said before", StateUnavailableError, "something"),
    ],
)
def test_every_message_has_its_error(said: str, kind: type[StateFolderError], word: str) -> None:
    error = as_state_error(Exception(said), PATH, "reading a row")
    assert type(error) is kind
    assert word in str(error)
    assert str(PATH) in str(error)
    assert error.hint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE])
def test_an_error_of_the_operating_system_is_known_by_its_number(number: int) -> None:
    error = as_state_error(OSError(number, "in another language"), PATH, "opening the state")
    assert type(error) is StateUnavailableError
    assert "Nothing committed is lost" in str(error)


def test_a_file_that_is_missing_to_the_operating_system_is_no_corruption() -> None:
    missing = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    assert type(as_state_error(missing, PATH, "opening the state")) is StateUnavailableError


def test_an_error_of_ours_and_a_mistake_of_the_caller_stay_what_they_are() -> None:
    for error in (StateFolderError("not ours"), KeyError("raw mode only support bytes"), ValueError("no")):
        assert as_state_error(error, PATH, "reading a row") is error
