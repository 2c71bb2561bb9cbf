"""confluent-kafka, which is optional. Its own types are not known in full."""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any, TypeAlias

from tailrace.core.errors import MissingExtraError

Consumer: TypeAlias = Any
Producer: TypeAlias = Any
AdminClient: TypeAlias = Any
Message: TypeAlias = Any
At: TypeAlias = Any
"""A ``confluent_kafka.TopicPartition``: a partition, and an offset in it."""
KafkaError: TypeAlias = Any


def library(name: str = "confluent_kafka") -> Any:
    """The library, or a module of it. Raises MissingExtraError: it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            "Kafka needs the package confluent-kafka", hint="Install it: pip install 'tailrace[kafka]'."
        ) from error


def never_freed(client: Any) -> None:
    """Let a client live that does not come back. To free it, at the end of the process, too, would wait for it without end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def admin_library() -> Any:
    """The part for topics and offsets."""
    return library("confluent_kafka.admin")
