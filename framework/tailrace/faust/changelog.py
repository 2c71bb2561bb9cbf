"""The changelog of a Faust table, as one row for each key that the table has at its end.

Theory. Faust writes each change of a table to ``<app id>-<table>-changelog``: the encoded key, and the encoded value or null for a
deletion. The partition is that of the event that caused the change, so it says nothing about the key. Compaction may not have run yet.
So the changelog is read twice: first to find the last record of each key, then to decode those. The first pass keeps the
encoded keys in memory (some 200 bytes each), never the values.

=========================================  ===========================================================
in the changelog                           a row
=========================================  ===========================================================
a key, written several times               one, of the last record
a key, then null                           none: the table does not have the key
the key of a window, ``[key, [from, to]]`` ``key``, ``start_ms`` and ``end_ms`` as Faust has them
one key in two partitions                  two, if the events have a field ``partition``; else an error
a Faust Record                             its fields, without ``__faust``
the key of a set, ``[action, key]``        an error: a SetTable writes a record for each member, so the last one says little
=========================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from tailrace.core.errors import (
    BadRecordError,
    LogUnavailableError,
    OptionError,
    TailraceError,
    UnknownTopicError,
)
from tailrace.core.extras import ExtraModule
from tailrace.core.records import InputRecord
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.types import shortened
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import Log, TopicPartition

faust_codecs: Any = ExtraModule("faust.serializers.codecs", "Tables of Faust", "faust")

CHANGELOG = "-changelog"
_MARK = "__faust"


class TableRow(NamedTuple):
    """A key of a table with its value. ``error`` is the reason why it cannot be read; empty if it was."""

    partition: int
    offset: int
    changed_ms: int
    key: Any
    value: Any = None
    start_ms: int | None = None
    """Of the window, with ``end_ms``; None if the table has no windows."""
    end_ms: int | None = None
    error: str = ""


class TableLayout(NamedTuple):
    """How a table is stored: the names of its codecs in Faust, and whether it has windows."""

    key_codec: str = "json"
    value_codec: str = "json"
    is_windowed: bool | None = None
    """None: it has none, and a key that looks like that of a window, or of a set, is an error."""


class FaustTable:
    """The table ``name`` of the Faust app ``app`` (its id), on the log that Faust uses.

    Raises:
        UnknownTopicError: The log has no changelog of this table.
        OptionError: A codec is unknown, or unpickles whatever it finds.
        MissingExtraError: faust-streaming is not installed.
    """

    def __init__(self, log: Log, app: str, name: str, layout: TableLayout = TableLayout()) -> None:  # noqa: B008  # immutable
        self.app, self.name, self.layout = app, name, layout
        self.topic = f"{app}-{name}{CHANGELOG}"
        known = log.topics()
        if self.topic not in known:
            meant = did_you_mean(self.topic, [one for one in known if one.endswith(CHANGELOG)])
            raise UnknownTopicError(
                f"the log has no topic {self.topic!r}, which would be the changelog of the table {name!r} of the Faust app {app!r}",
                hint=f"{meant} The app is named by its id, with -v2 and so on for a version.".lstrip(),
            )
        self._log = log
        self._key, self._value = _decoder(layout.key_codec), _decoder(layout.value_codec)
        self._last: list[dict[bytes, int]] = []
        self._ends: list[int] = []
        self.newest_ms = 0
        """The highest timestamp of the changelog, once it was read."""

    def read(self, *, is_shared_allowed: bool) -> int:
        """Find the last record of each key. Returns the number of keys that the table has.

        Raises:
            BadRecordError: A record has no key; or a key is in several partitions, and ``is_shared_allowed`` is false.
            LogUnavailableError: An open transaction hides the end of the changelog.
        """
        numbers = range(self._log.partitions(self.topic))
        self._ends = [self._log.end_offset(self.topic, number) for number in numbers]
        self._last = last = [self._read(number) for number in numbers]
        of: dict[bytes, int] = {}
        for number, key in () if is_shared_allowed else ((n, key) for n in numbers for key in last[n]):
            if (other := of.setdefault(key, number)) != number:
                raise BadRecordError(
                    f"the table {self.name!r} has the key {shortened(key)} in the partitions {other} and {number}, each with a value "
                    "of its own, as events of several partitions have set it",
                    topic=self.topic,
                    hint="Give the events a field 'partition' (int), and let the handler combine the values.",
                )
        return sum(map(len, last))

    def rows(self) -> Iterator[TableRow]:
        """The rows, by partition and offset of their last change. The order is the same each time. ``read`` comes first.
        Raises TailraceError: the changelog has changed since ``read``.
        """
        found = 0
        for number, last in enumerate(self._last):
            for record in scan(self._log, self.topic, number, stop=self._ends[number]):
                if record.key is not None and last.get(record.key) == record.offset:
                    found += 1
                    yield self._row(number, record)
        ends = [self._log.end_offset(self.topic, number) for number in range(len(self._last))]
        if ends != self._ends or found != sum(map(len, self._last)):
            raise TailraceError(
                f"the changelog {self.topic!r} was changed while it was imported",
                hint="Stop the Faust app. Then delete the topic of the events, create it again and import again.",
            )

    def _read(self, number: int) -> dict[bytes, int]:
        last: dict[bytes, int] = {}
        for record in scan(self._log, self.topic, number, stop=self._ends[number], on_hidden=_refuse_hidden):
            if record.key is None:
                raise BadRecordError(
                    "a record of the changelog has no key, which Faust writes for no table",
                    topic=self.topic,
                    partition=number,
                    offset=record.offset,
                    hint="Find the program that wrote it.",
                )
            self.newest_ms = max(self.newest_ms, record.timestamp_ms)
            if record.value is None:
                last.pop(record.key, None)
            else:
                last[record.key] = record.offset
        return last

    def _row(self, partition: int, record: InputRecord) -> TableRow:
        row = TableRow(partition, record.offset, record.timestamp_ms, record.key)
        part = "key"
        try:
            key = self._key(record.key or b"")
            window = _window(key)
            if self.layout.is_windowed and window is None:
                raise ValueError("it is not that of a window, [key, [from, to]]")
            if self.layout.is_windowed is None and window is not None:
                raise ValueError("it looks like that of a window: say --windowed, or --not-windowed")
            if self.layout.is_windowed is None and _is_of_set(key):
                raise ValueError(
                    "it looks like that of a SetTable, [action, key], whose sets cannot be imported: let Faust send them as events. "
                    "For a table with such keys, say --not-windowed"
                )
            key, start_ms, end_ms = window if window and self.layout.is_windowed else (key, None, None)
            row, part = row._replace(key=_plain(key), start_ms=start_ms, end_ms=end_ms), "value"
            return row._replace(value=_plain(self._value(record.value or b"")))
        except Exception as error:  # noqa: BLE001  # codecs raise anything
            return row._replace(error=f"the {part} cannot be decoded: {error}")


_CODECS = {"json", "raw", "binary", "yaml", "pickle_restricted"}


def _decoder(name: str) -> Callable[[bytes], Any]:
    if name == "json":
        return msgspec.json.decode  # what Faust writes with it is JSON: twenty times as fast as its decoder
    if others := sorted({*name.split("|")} - _CODECS):
        raise OptionError(
            f"values are not decoded by the codec {others[0]!r}, which may run what it finds in the topic, or is none",
            hint=f"Codecs are {', '.join(sorted(_CODECS))}; pickle_restricted reads the plain values in pickles.",
        )
    decode: Callable[[bytes], Any] = faust_codecs.get_codec(name).loads
    return decode


def _window(key: Any) -> tuple[Any, int, int] | None:
    """The parts of a key of a window, in ms; None if it is not of this form."""
    match key:
        case [inner, [int() | float() as start, int() | float() as end]]:
            return inner, round(start * 1_000), round(end * 1_000)
        case _:
            return None


def _is_of_set(key: Any) -> bool:
    match key:
        case [1 | 2 | 15, _]:  # a member is added, discarded, or several are changed
            return True
        case _:
            return False


def _plain(value: Any) -> Any:
    """A value without the mark that a Faust Record leaves in its fields, also in those of records inside."""
    kind: Any = value.__class__
    if kind is dict:
        return {name: _plain(one) for name, one in value.items() if name != _MARK}
    return [_plain(one) for one in value] if kind is list else value


def _refuse_hidden(place: TopicPartition, first: int, stop: int) -> None:
    raise LogUnavailableError(
        f"a transaction that is open hides offsets {first} to {stop - 1} of {place.topic!r} partition {place.partition}",
        hint="Run the command again when it has ended: Kafka aborts it after its transaction.timeout.ms.",
    )
