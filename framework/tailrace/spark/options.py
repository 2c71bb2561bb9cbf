"""The options of ``spark.read.format("tailrace")``, checked: unknown or wrong ones are refused.

Topics are read from a past: ``log``, an ``archive`` of it, or both as one history (see ``log.opening``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import msgspec

from tailrace.core.durations import parsed_instant
from tailrace.core.errors import BadRecordError, TailraceError, UsageError
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.keys import KeyCodec
from tailrace.core.values.types import spell
from tailrace.log.opening import Past

_READ = {
    "log": "the folder of an event log",
    "archive": "the URI of an archive of a log; together with log: one history",
    "topic": "the topic",
    "app": "module:attribute of the app that declares the topic; of a snapshot: that, or the app's name",
    "columns": "the columns that are wanted, with commas between",
    "topicId": "which topic it is, as `cut` returns it; another topic of this name is an error",
    "startingOffsets": "earliest, a number, or a number by partition as JSON",
    "endingOffsets": "latest, a number, or a number by partition as JSON",
    "startingTime": "an instant; records with this timestamp or a later one",
    "endingTime": "an instant; records with an earlier timestamp",
    "keys": "keys, as a JSON list",
    "undecodable": "fail, or keep: what becomes of a record that cannot be decoded",
    "recordsPerTask": "how many offsets one task of Spark reads",
    "snapshot": "the URI under which snapshots lie",
    "id": "which snapshot: its id, the beginning of it, a savepoint's name, or latest",
    "actor": "the actor",
    "field": "its MapState or ListState, which is a table of its own",
    "name": "of a snapshot that is written: makes it a savepoint",
    "table": "timers, or state as it is stored",
}
OF_TOPICS = (
    *("topic", "log", "archive", "startingOffsets", "endingOffsets"),
    *("startingTime", "endingTime", "undecodable", "recordsPerTask"),
)
"""The options of topics that snapshots do not have."""
_NAMES = {name.lower(): name for name in _READ}


class Options:
    """Options as Spark passes them: text, with case-insensitive names.
    Raises UsageError: an option is unknown.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given: dict[str, str] = {}
        for name, value in given.items():
            known = _NAMES.get(name.lower())
            if known is None:
                hint = did_you_mean(name, _READ, f"The options are: {', '.join(_READ)}.")
                raise UsageError(f'the format "tailrace" has no option {name!r}', hint=hint)
            self._given[known] = value

    def at(self, cut: Mapping[str, str]) -> Options:
        """The same options at a cut."""
        return Options({**self._given, **cut})

    def get(self, name: str) -> str | None:
        """The text of an option, or None."""
        return self._given.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def past(self) -> Past:
        """Where topics are read."""
        if "log" not in self and "archive" not in self:
            raise UsageError(
                "the options do not select anything to read",
                hint="Give log and topic, archive and topic, or snapshot and app.",
            )
        return Past(log=self.get("log"), archive=self.get("archive"))

    def required(self, name: str) -> str:
        """The text of a required option."""
        found = self._given.get(name)
        if not found:
            raise UsageError(
                f"the option {name!r} is missing", hint=f'Write .option("{name}", ...): {_READ[name]}.'
            )
        return found

    def one_of(self, name: str, *values: str) -> str:
        """One of some words, by default the first."""
        found = self._given.get(name, values[0])
        if found not in values:
            hint = did_you_mean(found, values, f"Write {' or '.join(values)}.")
            raise UsageError(f"{name} is {found!r}", hint=hint)
        return found

    def refuse(self, *names: str, because: str) -> None:
        """Refuse options that cannot be combined with others."""
        found = [name for name in names if name in self._given]
        if found:
            raise UsageError(f"the option {found[0]!r} is not allowed here: {because}", hint="Leave it out.")

    def names(self, name: str) -> list[str]:
        """Names separated by commas."""
        return [one.strip() for one in self._given.get(name, "").split(",") if one.strip()]

    def count(self, name: str, default: int) -> int:
        """A number of at least 1."""
        text = self._given.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and int(text) > 0):
            raise UsageError(f"{name} is {text!r}", hint="Write a whole number of at least 1.")
        return int(text)

    def offsets(self, name: str) -> int | dict[int, int] | None:
        """An offset for all partitions, or one for each; None for ``earliest`` or ``latest``."""
        text = self._given.get(name, "").strip()
        if text in ("", "earliest" if name == "startingOffsets" else "latest"):
            return None
        if text.isascii() and text.isdecimal():
            return int(text)
        try:
            return _by_partition(text)
        except (msgspec.DecodeError, ValueError):
            raise UsageError(
                f"{name} is {text!r}", hint=f'Write {_READ[name]}: {{"0": 17, "1": 23}}.'
            ) from None

    def instant_ms(self, name: str) -> int | None:
        """An instant in milliseconds."""
        text = self._given.get(name)
        if text is None:
            return None
        try:
            return parsed_instant(text.strip())
        except (ValueError, TailraceError):
            raise UsageError(
                f"{name} is {text!r}, which is not an instant",
                hint="Write 2013-01-01, 2013-01-01T05:17:00Z or 1357017420000ms.",
            ) from None

    def keys(self, codec: KeyCodec) -> frozenset[bytes] | None:
        """The given keys, encoded; None for all."""
        if "keys" not in self._given:
            return None
        try:
            found = msgspec.json.decode(self._given["keys"], type=list[str | int | list[str | int]])
        except msgspec.DecodeError as error:
            raise UsageError(
                f"keys is {self._given['keys']!r}: {error}", hint='Write a JSON list: ["N14228", "N24211"].'
            ) from None
        return frozenset(_encoded_key(one, codec) for one in found)


def _encoded_key(shown: object, codec: KeyCodec) -> bytes:
    if codec.type is bytes and isinstance(shown, str):
        return shown.encode()
    try:
        return codec.encode(msgspec.convert(shown, codec.type, strict=False))
    except (msgspec.ValidationError, BadRecordError) as error:
        reason = error.what if isinstance(error, BadRecordError) else str(error)
        raise UsageError(
            f"{shown!r} is not one of these keys: {reason}", hint=f"They are of type {spell(codec.type)}."
        ) from None


def _by_partition(text: str) -> dict[int, int]:
    found = msgspec.json.decode(text, type=dict[int, int])
    if any(one < 0 for pair in found.items() for one in pair):
        raise ValueError(text)
    return found


_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def reported() -> Generator[None]:
    """Report a ``TailraceError`` to the user of Spark by its message alone, which has the place and the fix.

    PySpark would put the traceback of its worker process before it, and report both as the message of the failed query.
    """
    try:
        yield
    except TailraceError:
        if _is_worker():
            # PySpark reads it when it reports this error. Afterwards the process ends.
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _is_worker() -> bool:
    """Whether PySpark started this process, and not a program that uses Tailrace."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
