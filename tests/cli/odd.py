"""An app whose events have a field of every type that a cell may be taken for."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import msgspec

import tailrace as tr


class Oddity(msgspec.Struct):
    when: datetime | None = None
    day: date | None = None
    span: timedelta | None = None
    count: int = 0
    maybe: int | None = 1
    text: str = ""
    share: float = 0.0
    flag: bool = False


app = tr.App("odd", partitions=1)
oddities = app.topic("oddities", Oddity)
packed = app.topic("packed", Oddity, format="msgpack")
