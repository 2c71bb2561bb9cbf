"""The alert rules and the dashboard are about metrics that the page lists; ``tests.runtime.test_measuring`` compares it with a service."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.deploy.commands import COMMON, COMPOSES, composed
from tests.docs.page import ROOT

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "tailrace.json"
PAGE = ROOT / "docs" / "operating.md"
ROW = re.compile(r"^\| `(tailrace_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
OF_EVERY_METRIC = {"app", "instance", "job"}


def promtool(*arguments: object, folder: Path = ROOT) -> str:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_the_page() -> dict[str, tuple[str, set[str]]]:
    """Type and further labels of each metric in the table."""
    text = PAGE.read_text("utf-8")
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(text)}


def expressions() -> list[str]:
    """All that is asked of Prometheus by the rules and the dashboard."""
    rules = [part.split("labels:")[0] for part in RULES.read_text("utf-8").split("expr:")[1:]]
    panels = re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', DASHBOARD.read_text("utf-8"))
    assert len(rules) == 10
    assert panels
    return [*rules, *panels]


def test_each_rule_fires_on_its_fault_and_none_on_a_healthy_service(tmp_path: Path) -> None:
    for one in (RULES, Path(__file__).with_name("alerts_test.yml")):
        (tmp_path / one.name).write_bytes(one.read_bytes())
    assert "10 rules found" in promtool("check", "rules", "alerts.yml", folder=tmp_path)
    promtool("test", "rules", "alerts_test.yml", folder=tmp_path)


@pytest.mark.parametrize("number", [0, 1], ids=["flights", "template"])
def test_prometheus_finds_every_process_of_the_services_of_its_compose_file(number: int) -> None:
    path = [ROOT / "deploy" / "prometheus", COMMON][number] / "prometheus.yml"
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", path)
    found = composed(path)["scrape_configs"]
    services = composed(COMPOSES[number])["services"]
    with_copies = {name for name, one in services.items() if "replicas" in one.get("deploy", {})}
    for job in found:
        assert job["job_name"] == "tailrace", "rules and dashboard ask for it"
        assert {name for each in job["dns_sd_configs"] for name in each["names"]} == with_copies
        assert {each["port"] for each in job["dns_sd_configs"]} == {8080}
        assert (
            job["authorization"]["credentials_file"].rpartition("/")[2] in services["prometheus"]["secrets"]
        )


def test_rules_and_dashboard_ask_for_metrics_and_labels_of_the_page() -> None:
    known = in_the_page()
    for one in expressions():
        names = set(re.findall(r"\b(?:tailrace|process)_\w+", one))
        assert names <= {*known, "process_resident_memory_bytes", "process_cpu_seconds_total"}, one
        of_metrics = [known[name][1] for name in names if name in known]
        labels = OF_EVERY_METRIC.union(*of_metrics)
        for listed in re.findall(r"(?:by|on) \(([^)]*)\)", one):
            assert set(re.split(r",\s*", listed)) <= labels, one


def test_each_alert_has_a_row_in_the_page_that_says_what_to_do() -> None:
    alerts = re.findall(r"alert: (\w+)", RULES.read_text("utf-8"))
    assert re.findall(r"^\| `(Tailrace\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE) == alerts


def test_the_dashboard_is_json_with_a_panel_for_each_question() -> None:
    panels = msgspec.json.decode(DASHBOARD.read_bytes())["panels"]
    assert len({one["title"] for one in panels}) == len(panels) >= 8
    assert all(one["datasource"]["uid"] == "prometheus" for one in panels)
