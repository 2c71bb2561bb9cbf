"""The manifests are valid, fit one another, and their commands are understood with the environment that they set."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.main import tailrace
from tailrace.processes.app_loading import find_app
from tests.docs.page import ROOT

yaml: Any = import_module("yaml")
kubernetes_validate: Any = import_module("kubernetes_validate")
FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yml"))
HTTP_PORT = 8080


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


ALL = [one for path in FILES for one in documents(path)]
RUNNING = [one for one in ALL if one["kind"] in ("StatefulSet", "Deployment", "Job")]
SETTINGS: dict[str, str] = next(one["data"] for one in ALL if one["kind"] == "ConfigMap")


def name_of(one: dict[str, Any]) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


def containers(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from one["spec"]["template"]["spec"]["containers"]


def has_settings(container: dict[str, Any]) -> bool:
    return any("configMapRef" in one for one in container["envFrom"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_is_valid_with_no_field_that_is_unknown(path: Path) -> None:
    for one in documents(path):
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_a_field_that_is_unknown_would_be_found() -> None:
    wrong = {**ALL[0], "sepc": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("one", RUNNING, ids=name_of)
def test_a_command_is_understood(one: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for container in containers(one):
        environment = {each["name"]: each["value"] for each in container.get("env", ())}
        for name, value in (SETTINGS if has_settings(container) else environment).items():
            monkeypatch.setenv(name, value)
        command, *arguments = container["args"]
        with tailrace.commands[command].make_context(command, [*arguments]) as context:
            plan = find_app(context.params["app"]).plan()
            grace_ms = context.params.get("grace", 0)
        pod = one["spec"]["template"]["spec"]
        assert one["spec"].get("replicas", 1) <= plan.partitions
        assert grace_ms < 1_000 * pod.get("terminationGracePeriodSeconds", 30)


@pytest.mark.parametrize("one", RUNNING, ids=name_of)
def test_a_container_has_no_rights_and_what_it_writes_to_is_mounted(one: dict[str, Any]) -> None:
    pod = one["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["runAsNonRoot"] is True
    if one["kind"] != "Deployment":
        assert pod["securityContext"]["fsGroup"] == 10001, "its volume is of root"
    volumes = {each["name"] for each in pod["volumes"]}
    volumes |= {each["metadata"]["name"] for each in one["spec"].get("volumeClaimTemplates", ())}
    for container in containers(one):
        said = container["securityContext"]
        assert said["readOnlyRootFilesystem"] is True
        assert said["allowPrivilegeEscalation"] is False
        assert said["capabilities"] == {"drop": ["ALL"]}
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert set(mounted.values()) <= volumes
        assert "/tmp" in mounted  # of the container
        if one["kind"] == "StatefulSet":
            assert SETTINGS["TAILRACE_STATE"] in mounted
        if has_settings(container):
            token = Path(SETTINGS["TAILRACE_HTTP_TOKEN_FILE"])
            assert str(token.parent) in mounted
            assert container["ports"] == [{"name": "http", "containerPort": HTTP_PORT}]
            assert SETTINGS["TAILRACE_HTTP"].endswith(f":{HTTP_PORT}")
            paths = {
                container[probe]["httpGet"]["path"]
                for probe in ("livenessProbe", "readinessProbe", "startupProbe")
                if probe in container
            }
            assert paths == {"/livez", "/readyz"}


def test_each_service_has_a_budget_and_selectors_find_their_pods() -> None:
    labels = {name_of(one): one["spec"]["template"]["metadata"]["labels"] for one in RUNNING}
    sets = {one["metadata"]["name"] for one in RUNNING if one["kind"] == "StatefulSet"}
    assert sets == {one["metadata"]["name"] for one in ALL if one["kind"] == "PodDisruptionBudget"}
    for one in ALL:
        selector = one.get("spec", {}).get("selector", {})
        selector = selector.get("matchLabels", selector)
        if selector and one["kind"] != "Job":
            assert any(selector.items() <= found.items() for found in labels.values()), name_of(one)


def test_what_each_pod_reaches_and_who_reaches_it_is_listed() -> None:
    policy, of_rebuild = [one["spec"] for one in ALL if one["kind"] == "NetworkPolicy"]
    for one in RUNNING:
        found = one["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= found.items()
        reaches = of_rebuild["podSelector"]["matchLabels"].items() <= found.items()
        assert reaches == (one["kind"] == "Job"), "the bucket"
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert all(peer.keys() == {"namespaceSelector", "podSelector"} for peer in policy["ingress"][0]["from"])
    assert all(rule["to"] and rule["ports"] for rule in policy["egress"])


@pytest.mark.parametrize("one", RUNNING, ids=name_of)
def test_an_image_is_named_by_a_version(one: dict[str, Any]) -> None:
    assert all(each["image"].partition(":")[2] not in ("", "latest") for each in containers(one))
