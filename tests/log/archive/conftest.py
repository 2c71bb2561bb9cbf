from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.log.embedded import EmbeddedLog
from tests.log.archive.lived import grow, made


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """A log with some records in all of its topics."""
    found = made(tmp_path)
    grow(found, random.Random(1))
    yield found
    found.close()
