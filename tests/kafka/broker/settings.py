"""The ``server.properties`` of a node: a broker and a controller in one process, set for tests.

A test cluster has the defaults of Kafka, but for what its size demands and for what would make a test wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.kafka.broker.certificate import Certificate

SMALL = {
    "auto.create.topics.enable": "false",
    # Without delays and long intervals.
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A broker that was killed registers again only when its old session is over.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Few threads and partitions, and a small buffer of the cleaner (128 MB by default).
    "num.network.threads": "2",
    "num.io.threads": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "log.cleaner.dedupe.buffer.size": "2097152",
    # A test of compaction waits for the cleaner (15 s by default).
    "log.cleaner.backoff.ms": "500",
    # A busy machine may take long to start the processes.
    "initial.broker.registration.timeout.ms": "180000",
}


def properties(
    number: int,
    data: Path,
    ports: Mapping[int, Mapping[str, int]],
    certificate: Certificate | None,
    changed: Mapping[str, str],
) -> dict[str, str]:
    """The settings of node ``number``. ``ports`` has the port of each listener of each node; ``changed`` is the caller's."""
    mine = ports[number]
    copies = str(len(ports))
    in_sync = str(min(2, len(ports)))
    protocols = {"CONTROLLER": "PLAINTEXT", "PLAIN": "PLAINTEXT", "SECURE": "SASL_SSL"}
    found = {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "log.dirs": str(data),
        "controller.quorum.voters": ",".join(
            f"{each}@127.0.0.1:{ports[each]['CONTROLLER']}" for each in sorted(ports)
        ),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAIN",
        "listeners": _listed(mine),
        "advertised.listeners": _listed({name: port for name, port in mine.items() if name != "CONTROLLER"}),
        "listener.security.protocol.map": ",".join(f"{name}:{protocols[name]}" for name in mine),
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        **SMALL,
    }
    if certificate is not None:
        found |= {
            "listener.name.secure.ssl.keystore.type": "PKCS12",
            "listener.name.secure.ssl.keystore.location": str(certificate.store),
            "listener.name.secure.ssl.keystore.password": certificate.password,
            "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.secure.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }
    return {**found, **changed}


def _listed(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
