"""The verdict on two types of a topic's events."""

from __future__ import annotations

from typing import Any

from tailrace.core.values.type_schemas import describe_event
from tailrace.schemas.comparing import Break, breaks
from tailrace.schemas.lock import AppShape, TopicShape


def shape(type_: Any) -> AppShape:
    """An app with one topic of this type."""
    return AppShape({"topic": TopicShape("json", None, None, "<record>", describe_event(type_))}, {})


def lost(written: Any, read: Any) -> list[Break]:
    """What a reader of the type ``read`` may not decode of the type ``written``."""
    return breaks("app", shape(written), shape(read), "backward")
