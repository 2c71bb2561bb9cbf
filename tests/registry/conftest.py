"""A schema registry for the tests of this folder, as a process: Apicurio's, with the API of Confluent's, its schemas in memory."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tailrace.spark.session import check_java
from tests.kafka.broker.artefacts import registry
from tests.kafka.broker.cluster import free_ports
from tests.kafka.broker.node import JVM
from tests.kafka.conftest import kafka, kafka_url
from tests.runtime.processes import wait_until

__all__ = ["Apicurio", "apicurio", "kafka", "kafka_url", "prefix"]


class Apicurio:
    """A registry that runs. ``url`` is its address for clients of Confluent's."""

    def __init__(self, folder: Path) -> None:
        (jar,) = registry().glob("*-runner.jar")
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        settings = {"quarkus.http.port": port, "quarkus.http.host": "127.0.0.1", "java.io.tmpdir": folder}
        options = [f"-D{name}={value}" for name, value in settings.items()]
        with (folder / "registry.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(check_java()), *JVM, *options, "-jar", str(jar)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Apicurio:
        wait_until(self._answers, "the registry answers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, content: Any = None, method: str | None = None) -> Any:
        """What it answers; the status alone if it refuses."""
        data = None if content is None else json.dumps(content).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                return error.code

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the registry has ended: see registry.log"
        try:
            return bool(self.ask("/subjects") == [])
        except OSError:
            return False


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
