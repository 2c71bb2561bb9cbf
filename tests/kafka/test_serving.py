"""Answers from a cluster: the same as ``tailrace get``, older while brokers are silent, none after the changelog is deleted."""

from __future__ import annotations

from pathlib import Path

from tailrace.log.kafka import KafkaLog
from tests.cli.commands import done
from tests.kafka.broker.cluster import Cluster
from tests.runtime.processes import wait_until
from tests.serve.asking import serving
from tests.serve.depot import app
from tests.serve.stocked import DEPOT, stock_up


def test_an_answer_is_that_of_get_until_the_changelog_is_deleted(kafka_url: str, tmp_path: Path) -> None:
    stock_up(kafka_url, tmp_path / "state")
    with serving(kafka_url) as asked:
        asked.until_ready()
        (told,) = done("get", DEPOT, "Depot", "north", "--json", "--log", kafka_url).lines
        wait_until(lambda: asked.ask("/actors/Depot/north").body["age_ms"] < 1_500, "it hears the end")
        said = asked.ask("/actors/Depot/north").body
        for name in ("age_ms", "judged_at_ms"):
            told.pop(name)
            said.pop(name)
        assert said.pop("offset") >= told.pop("offset"), "the follower also passes the marker of the commit"
        assert said == told
        log = KafkaLog(kafka_url)
        log.admin.delete_topics([app.plan().changelog_topic])
        log.close()
        wait_until(lambda: asked.ask("/actors/Depot/north").status == 503, "nothing is answered any more")
        wait_until(lambda: "no topic" in asked.ask("/actors/Depot/north").body["error"], "it says why")


def test_while_brokers_are_silent_the_answers_become_older_and_then_younger(tmp_path: Path) -> None:
    with Cluster(tmp_path / "kafka") as cluster:
        url = f"kafka://{cluster.bootstrap}"
        stock_up(url, tmp_path / "state")
        with serving(url) as asked:
            asked.until_ready()
            cluster.nodes[0].pause()
            try:
                wait_until(lambda: asked.ask("/actors/Depot/north").body["age_ms"] > 3_000, "the age grows")
                assert asked.ask("/actors/Depot/north/count").body["value"] == 2
            finally:
                cluster.nodes[0].resume()
            wait_until(lambda: asked.ask("/actors/Depot/north").body["age_ms"] < 1_500, "the broker is heard")
