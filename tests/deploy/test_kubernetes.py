"""The manifests of the flights and of the template are valid, fit one another, and their commands are understood with their environment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.commands import COMMON, understood
from tests.docs.page import ROOT

yaml: Any = import_module("yaml")
kubernetes_validate: Any = import_module("kubernetes_validate")
FILES = [*sorted((ROOT / "deploy" / "kubernetes").glob("*.yml")), COMMON / "kubernetes.yml"]
HTTP_PORT = 8080


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


SETS = [[one for path in FILES[:-1] for one in documents(path)], documents(FILES[-1])]
RUNNING = [
    (one, all_) for all_ in SETS for one in all_ if one["kind"] in ("StatefulSet", "Deployment", "Job")
]


def name_of(one: object) -> str:
    return f"{one['kind']}/{one['metadata']['name']}" if isinstance(one, dict) else ""


each_running = pytest.mark.parametrize(("one", "all_"), RUNNING, ids=name_of)
each_set = pytest.mark.parametrize("all_", SETS, ids=["flights", "template"])


def settings_of(all_: list[dict[str, Any]]) -> dict[str, str]:
    (found,) = [one["data"] for one in all_ if one["kind"] == "ConfigMap"]
    return dict(found)


def containers(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from one["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_manifest_is_valid_with_no_field_that_is_unknown(path: Path) -> None:
    for one in documents(path):
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_a_field_that_is_unknown_would_be_found() -> None:
    wrong = {**SETS[0][0], "sepc": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


@each_running
def test_a_command_is_understood(one: dict[str, Any], all_: list[dict[str, Any]]) -> None:
    maps = [each["metadata"]["name"] for each in all_ if each["kind"] == "ConfigMap"]
    for container in containers(one):
        environment = {each["name"]: each["value"] for each in container.get("env", ())}
        for source in container["envFrom"]:
            if "configMapRef" in source:
                assert source["configMapRef"]["name"] in maps
                environment |= settings_of(all_)
        found = understood(container["args"], environment)
        grace_s = one["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
        assert environment["TAILRACE_LOG"] == (found.options.get("folder") or found.options.get("log"))
        assert one["spec"].get("replicas", 1) <= found.partitions
        assert found.grace_ms < 1_000 * grace_s


@each_running
def test_a_container_has_no_rights_and_what_it_writes_to_is_mounted(
    one: dict[str, Any], all_: list[dict[str, Any]]
) -> None:
    settings = settings_of(all_)
    pod = one["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["runAsNonRoot"] is True
    claims = {each["metadata"]["name"] for each in one["spec"].get("volumeClaimTemplates", ())}
    if claims or any("persistentVolumeClaim" in each for each in pod["volumes"]):
        assert pod["securityContext"]["fsGroup"] == 10001, "its volume is of root"
    volumes = claims | {each["name"] for each in pod["volumes"]}
    for container in containers(one):
        said = container["securityContext"]
        assert said["readOnlyRootFilesystem"] is True
        assert said["allowPrivilegeEscalation"] is False
        assert said["capabilities"] == {"drop": ["ALL"]}
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert set(mounted.values()) <= volumes
        assert "/tmp" in mounted  # of the container
        if one["kind"] == "StatefulSet":
            assert mounted[settings["TAILRACE_STATE"]] in claims
        if one["kind"] != "Job":
            assert str(Path(settings["TAILRACE_HTTP_TOKEN_FILE"]).parent) in mounted
            assert container["ports"] == [{"name": "http", "containerPort": HTTP_PORT}]
            assert settings["TAILRACE_HTTP"].endswith(f":{HTTP_PORT}")
            paths = {
                container[probe]["httpGet"]["path"]
                for probe in ("livenessProbe", "readinessProbe", "startupProbe")
                if probe in container
            }
            assert paths == {"/livez", "/readyz"}


@each_set
def test_each_service_has_a_budget_and_selectors_find_their_pods(all_: list[dict[str, Any]]) -> None:
    running = [one for one, of in RUNNING if of is all_]
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in running]
    sets = {one["metadata"]["name"] for one in running if one["kind"] == "StatefulSet"}
    assert sets == {one["metadata"]["name"] for one in all_ if one["kind"] == "PodDisruptionBudget"}
    for one in all_:
        selector = one.get("spec", {}).get("selector", {})
        selector = selector.get("matchLabels", selector)
        if selector and one["kind"] != "Job":
            assert any(selector.items() <= found.items() for found in labels), name_of(one)


@each_set
def test_what_each_pod_reaches_and_who_reaches_it_is_listed(all_: list[dict[str, Any]]) -> None:
    policy, *of_rebuild = [one["spec"] for one in all_ if one["kind"] == "NetworkPolicy"]
    for one in [one for one, of in RUNNING if of is all_]:
        found = one["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= found.items()
        reaches = any(more["podSelector"]["matchLabels"].items() <= found.items() for more in of_rebuild)
        assert reaches == any(each["args"][0] == "rebuild" for each in containers(one)), "the bucket"
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert all(peer.keys() == {"namespaceSelector", "podSelector"} for peer in policy["ingress"][0]["from"])
    assert all(rule["to"] and rule["ports"] for rule in policy["egress"])


@each_running
def test_an_image_is_named_by_a_version(one: dict[str, Any], all_: list[dict[str, Any]]) -> None:
    assert all(each["image"].partition(":")[2] not in ("", "latest") for each in containers(one))
