"""The folder of a log: known by its label, refused if it holds anything else, made in an order that a crash cannot upset.

The label is written last, so a folder without one that holds nothing but what we make first is a start that was
interrupted, and is begun again.
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
    """See that the folder is a log, or make it one.

    Raises:
        ForeignLogError: It holds something else.
        NewerFormatError: A newer version made it.
        CorruptLogError: Its label cannot be read.
        LogUnavailableError: It is not there and may not, or cannot, be made.
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
            # Of an interrupted start nobody has seen anything, as there was no label.
            files.create(FIRST.file, first_of_segment(FIRST, State(), sequence=0, now_ms=now_ms))
            label = msgspec.json.format(msgspec.json.encode(_Label(FORMAT, _created_by())))
            files.create(LABEL, [label, b"\n"])


def first_of_segment(name: SegmentName, state: State, *, sequence: int, now_ms: int) -> list[bytes]:
    """What a new segment begins with: its head, and a frame with the state before it."""
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
