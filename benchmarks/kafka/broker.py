"""The broker of the benchmarks: the one that ``BENCH_KAFKA`` names, or a new one in a temporary folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

BROKER = "BENCH_KAFKA"
"""The variable with the addresses of a running broker."""


@contextmanager
def broker() -> Generator[str]:
    """The addresses of a broker. One that is started here ends with the block."""
    given = os.environ.get(BROKER)
    if given:
        yield given
        return
    from tests.kafka.broker.cluster import Cluster  # noqa: PLC0415  # not needed where a broker is given

    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-kafka-") as folder,
        Cluster(Path(folder)) as cluster,
    ):
        yield cluster.bootstrap
