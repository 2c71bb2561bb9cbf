"""The image: built from the Dockerfile, and its containers run on a real broker: load, two services, a page, a rebuild.

The image with Spark is built from it, and does the same rebuild by ``spark-submit``.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path

import pytest

from schemas.flights import Airframe, Arrival, Departure
from services.flights.history import facts
from tailrace.log.kafka import KafkaLog
from tests.deploy.containers import (
    IMAGE,
    JDK_IMAGE,
    OF_IMAGES,
    SPARK_IMAGE,
    USER,
    build,
    build_spark,
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
DAYS = date(2013, 7, 1), date(2013, 7, 3)
AIRCRAFT = "services.flights.aircraft:app"
MOST_OWN_BYTES = 80 << 20
"""Of the layers that are not the base's, compressed as a registry keeps them."""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    build()
    try:
        with root_of_image() as found:
            yield found
    finally:
        tool("buildah", "rmi", IMAGE)


@pytest.fixture(scope="module")
def spark_root(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    assert root.exists()
    try:
        build_spark(tmp_path_factory.mktemp("jdk"))
        with root_of_image(SPARK_IMAGE) as found:
            yield found
    finally:
        tool("buildah", "rmi", "--force", SPARK_IMAGE, JDK_IMAGE)


def test_its_own_layers_are_small_and_it_says_how_it_runs(root: Path, tmp_path: Path) -> None:
    said = settings()
    assert said["User"] == f"{USER}:{USER}"
    assert said["Entrypoint"] == ["tailrace"]
    assert said["Healthcheck"]["Test"] == ["CMD", "python", "-m", "tailrace.http.health"]
    tar = tmp_path / "own.tar"
    tool("tar", "-cf", tar, "-C", root, "venv", "tailrace")
    assert len(gzip.compress(tar.read_bytes(), 6)) < MOST_OWN_BYTES
    assert not list(root.glob("venv/lib/python3*/site-packages/pip")), "no tools are in it"
    assert tool("buildah", "images", "--quiet", IMAGE)


def test_a_container_has_no_rights_and_can_write_to_its_volume_alone(root: Path, tmp_path: Path) -> None:
    look = (
        "import os\n"
        "print(os.getuid(), [one.split()[1] for one in open('/proc/self/status') if one.startswith('CapEff')])\n"
        "for place in ('/', '/tailrace', '/venv', '/tailrace/data', '/tmp'):\n"
        "    try:\n"
        "        open(os.path.join(place, 'x'), 'w'); print(place, 'written')\n"
        "    except OSError as error:\n"
        "        print(place, error.strerror)\n"
    )
    volumes = {"/tailrace/data": owned(tmp_path / "data")}
    with container(root, tmp_path, ["-c", look], entrypoint=["python"], volumes=volumes) as one:
        code, said = one.ended()
    assert code == 0, said
    assert said.splitlines() == [
        f"{USER} ['0000000000000000']",
        "/ Read-only file system",
        "/tailrace Read-only file system",
        "/venv Read-only file system",
        "/tailrace/data written",
        "/tmp written",
    ]


def test_the_flights_run_in_containers_on_a_broker(
    root: Path, spark_root: Path, kafka_url: str, tmp_path: Path
) -> None:
    """The oracle is the history: as many records are taken as it has, and rebuilds in containers equal the log."""
    history = facts(*DAYS)
    due = sum(isinstance(one.event, (Airframe, Arrival, Departure)) for one in history)
    loading = ["-m", "services.flights.load", "--log", kafka_url, "--since", DAYS[0], "--until", DAYS[1]]
    for expected in (
        f"{len(history):,} records loaded, 0 were there",
        f"0 records loaded, {len(history):,} were",
    ):
        with container(root, tmp_path, loading, entrypoint=["python"]) as one:
            code, said = one.ended()
            assert code == 0, said
            assert expected in said, said

    port, data = free_ports(1)[0], owned(tmp_path / "data")
    environment = {
        "TAILRACE_LOG": kafka_url,
        "TAILRACE_HTTP": f"127.0.0.1:{port}",
        "TAILRACE_LOG_FORMAT": "json",
    }

    def is_ready() -> bool:
        try:
            return ask(port, "/readyz").status == 200
        except OSError:
            return False

    def are_taken() -> bool:
        return Metrics(port, app="aircraft").total("tailrace_records_total") == due

    for _ in range(2):  # the second finds its state in the volume
        with container(
            root, tmp_path, ["run", AIRCRAFT], environment=environment, volumes={"/tailrace/data": data}
        ) as one:
            wait_until(lambda: one.has_ended or is_ready(), "the service is ready")  # called here
            assert not one.has_ended, one.ended()
            wait_until(are_taken, "all records are taken")
            assert one.run("python", "-m", "tailrace.http.health") == ""
            code, said = one.stop()
            assert code == 0, said
            assert '"left"' in said.splitlines()[-1], said
    assert {path.stat().st_uid for path in (data / "state").rglob("*")} == {USER}

    with container(root, tmp_path, ["serve", AIRCRAFT], environment=environment) as one:
        wait_until(is_ready, "the page is ready")
        assert b"Aircraft" in ask(port, "/").body
        assert ask(port, "/status").json["app"] == "aircraft"
        assert one.stop()[0] == 0

    made = owned(tmp_path / "made")
    rebuilding = ["rebuild", AIRCRAFT, "--to", "/tailrace/data", "--workers", "1"]
    with container(
        root, tmp_path, rebuilding, environment=environment, volumes={"/tailrace/data": made}
    ) as one:
        code, said = one.ended()
        assert code == 0, said
        assert "all equal, byte for byte" in said, said

    by_spark = owned(tmp_path / "by-spark")
    submitting = ["--master", "local[2,4]", "/tailrace/submit.py", "rebuild", AIRCRAFT, "--engine", "spark"]
    with container(
        spark_root,
        tmp_path,
        [*submitting, "--to", "/tailrace/data"],
        image=SPARK_IMAGE,
        environment={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        volumes={"/tailrace/data": by_spark},
    ) as one:
        code, said = one.ended()
        assert code == 0, said
        assert "with the spark engine" in said, said
        assert "all equal, byte for byte" in said, said
    with closing(KafkaLog(kafka_url)) as log:
        assert "movements" in log.topics()
