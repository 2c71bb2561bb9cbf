"""A schema registry for the tests of this folder."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.registry.apicurio import Apicurio


@pytest.fixture(scope="session")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    """A registry that the tests of a process share. A test that stops one starts it itself."""
    with Apicurio(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def prefix(apicurio: Apicurio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The beginning of the names of this test's topics. The environment names the registry, and a folder of schemas."""
    monkeypatch.setenv("TAILRACE_REGISTRY_URL", apicurio.url)
    monkeypatch.setenv("TAILRACE_REGISTRY_SCHEMAS", str(tmp_path / "schemas"))
    return f"t{secrets.token_hex(6)}-"
