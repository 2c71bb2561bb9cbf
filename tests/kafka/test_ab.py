"""``tailrace ab`` on a broker: a planted change is found at its event."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.history.rebuilding.request import Source
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.opening import open_log
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tests.history.rebuilding import shops
from tests.lab import selling
from tests.lab.in_process import comparison

SOLD = "self.cents += event.cents"


def test_a_planted_change_is_found_at_its_event(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(kafka_url, create=True)
    assert isinstance(log, KafkaLog)
    for name in ("sales", "totals"):
        log.create_topic(name, TopicSettings(2))
    log.append_all(shops.sales(60))
    log.close()
    app = "tests.lab.selling:app"
    options = ServiceOptions(
        app, kafka_url, tmp_path / "state", end_of_input=True, after_end=True, create_topics=True
    )
    Host(options, selling.app.plan()).run()
    b = selling.version(tmp_path, "on_kafka", (SOLD, f"{SOLD} + 3 * (event.at == 1_300)"))
    report, keys, _ = comparison(monkeypatch, tmp_path, app, b, source=Source(log=kafka_url))
    assert (report.order, report.noise) == ("tape", [])
    assert report.noise_measured == "what the service has stored"
    assert [(one["difference"], one["first_topic"]) for one in keys] == [(3.0, "sales")]
    assert keys[0]["first_time"].timestamp() == 1.3
