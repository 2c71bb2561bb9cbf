"""One guarded broker for the tests of this folder."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.kafka.security.guarded import Guarded
from tests.kafka.security.orders import Orders


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The broker."""
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.close()


@pytest.fixture
def orders(guarded: Guarded, tmp_path) -> Iterator[Orders]:
    """A service of this test alone."""
    made = Orders(guarded, f"{secrets.token_hex(6)}.", tmp_path)
    yield made
    made.close()
