"""The folder of a log. A label file identifies it; a folder with anything else is refused. Its creation is crash-safe.

The label is written last. So a folder without a label that holds only files which are created earlier is an interrupted
creation. The creation is then repeated.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from tailrace.core.errors import CorruptLogError, ForeignLogError, LogUnavailableError
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.files import MAKING, SegmentFiles
from tailrace.log.embedded.frames import (
    FORMAT,
    Meta,
    SegmentName,
    State,
    encode_frame,
    encode_segment_head,
    newer,
)
from tailrace.log.embedded.lock import LOCK, AppendLock

LABEL = "tailrace-log.json"
FIRST = SegmentName(1)
_BEFORE_A_LABEL = re.compile(rf"{LOCK}|{re.escape(FIRST.file)}({MAKING})?|{LABEL}{MAKING}|owners")


class _Label(msgspec.Struct):
    format: int
    created_by: str = ""


def prepare(files: SegmentFiles, lock: AppendLock, *, create: bool, now_ms: int) -> None:
    """Check that the folder is a log, or create the log.

    Raises:
        ForeignLogError: The folder holds something else.
        NewerFormatError: A newer version created the log.
        CorruptLogError: The label cannot be read.
        LogUnavailableError: The log does not exist, and ``create`` is false or it cannot be created.
    """
    folder = files.folder
    with failing(folder, "opening the log"):
        if _is_log(folder):
            return
        if not create:
            raise LogUnavailableError(
                f"there is no log in {str(folder)!r}",
                hint="Correct the path, or create it: `tailrace log create`.",
            )
        folder.mkdir(parents=True, exist_ok=True)
        with lock.held():
            if _is_log(folder):
                return
            # No process has read the files of an interrupted creation, as there was no label.
            files.create(FIRST.file, first_of_segment(FIRST, State(), sequence=0, now_ms=now_ms))
            label = msgspec.json.format(msgspec.json.encode(_Label(FORMAT, _created_by())))
            files.create(LABEL, [label, b"\n"])


def first_of_segment(name: SegmentName, state: State, *, sequence: int, now_ms: int) -> list[bytes]:
    """The beginning of a new segment: its head, and a frame with the state before it."""
    head = encode_segment_head(name)
    return [head, encode_frame(Meta(now_ms, state=state), 0, sequence, 0)]


def _is_log(folder: Path) -> bool:
    try:
        names = {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise ForeignLogError(
            "the path of the log leads to a file", segment=str(folder), hint="Give the log a folder."
        ) from None
    if LABEL not in names:
        strangers = sorted(name for name in names if not _BEFORE_A_LABEL.fullmatch(name))
        if strangers:
            raise ForeignLogError(
                f"the folder holds something else: {', '.join(strangers[:3])}",
                segment=str(folder),
                hint="Give the log a folder of its own; nothing in this one was touched.",
            )
        return False
    try:
        label = msgspec.json.decode((folder / LABEL).read_bytes(), type=_Label)
    except msgspec.MsgspecError as error:
        raise CorruptLogError(
            f"the label cannot be read: {error}",
            segment=str(folder / LABEL),
            hint=f'It holds no events: if this version made the log, write {{"format": {FORMAT}}} into it.',
        ) from error
    if label.format > FORMAT:
        raise newer(label.format, str(folder / LABEL))
    return True


def _created_by() -> str:
    try:
        return f"tailrace {version('tailrace')}"
    except PackageNotFoundError:
        return "tailrace from its source tree"
