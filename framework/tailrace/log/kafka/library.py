"""confluent-kafka, which is optional. Its own types are not known in full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from tailrace.core.errors import MissingExtraError

_R = TypeVar("_R")

Consumer: TypeAlias = Any
Producer: TypeAlias = Any
AdminClient: TypeAlias = Any
Message: TypeAlias = Any
At: TypeAlias = Any
"""A ``confluent_kafka.TopicPartition``: a partition, and an offset in it."""
KafkaError: TypeAlias = Any


def library(name: str = "confluent_kafka") -> Any:
    """The library, or a module of it.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            "Kafka needs the package confluent-kafka", hint="Install it: pip install 'tailrace[kafka]'."
        ) from error


def admin_library() -> Any:
    """The part for topics and offsets."""
    return library("confluent_kafka.admin")


def in_thread(name: str, call: Callable[[], _R]) -> Future[_R]:
    """Call something in a thread of its own, which does not keep the process from ending."""
    outcome = Future[_R]()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
