"""A Kafka cluster of a test's own: one node or three, on free ports of the loopback, with its data in a folder.

    with Cluster(tmp_path) as cluster:
        Producer({**cluster.client, "transactional.id": "t"})
        cluster.nodes[0].kill()
        cluster.start()

The processes end with the ``with`` block, and also when the process of the tests is killed (``bound.py``). They are killed and
not shut down: the data is not needed any more, and the last nodes of a cluster wait in vain for a controller to say goodbye to.
"""

from __future__ import annotations

import random
import secrets
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tailrace.spark.session import check_java
from tests.kafka.broker.artefacts import jars
from tests.kafka.broker.node import Node

PORTS = range(15_000, 32_000)
"""Below the ports that the system gives to outgoing connections, so that a node finds its own free when it starts again."""


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
"""A test cluster has the defaults of Kafka, but for what its size demands and for what would make a test wait."""


class User(NamedTuple):
    """A user who may connect to the listeners that are encrypted."""

    name: str
    password: str


class Certificate(NamedTuple):
    """A certificate that signs itself: the broker has it with its key, the clients trust it."""

    store: Path
    """PKCS12, with the key: for the broker."""
    password: str
    """Of the store."""
    authority: Path
    """PEM, without the key: for the clients."""

    @classmethod
    def make(cls, java: Path, folder: Path) -> Certificate:
        """Make one for 127.0.0.1 in a folder."""
        made = cls(folder / "broker.p12", secrets.token_hex(16), folder / "authority.pem")
        keytool = [str(java.with_name("keytool")), "-keystore", str(made.store), "-storetype", "PKCS12"]
        keytool += ["-storepass", made.password, "-alias", "broker"]
        for command in (
            [
                *("-genkeypair", "-keyalg", "EC", "-dname", "CN=127.0.0.1"),
                *("-ext", "san=ip:127.0.0.1", "-validity", "30"),
            ],
            ["-exportcert", "-rfc", "-file", str(made.authority)],
        ):
            subprocess.run([*keytool, *command], stdin=subprocess.DEVNULL, check=True, capture_output=True)
        return made


class Cluster:
    """A cluster with ``size`` nodes, which answer when the constructor returns; the caller must close it.

    Args:
        folder: An existing folder for data, settings and logs.
        size: Number of nodes (default: 1). With three, topics have three replicas by default, two of them in sync.
        user: Who may use the listeners with TLS and SCRAM-SHA-512 (default: there are no such listeners).
        settings: Settings of the broker that differ from ``properties``.

    Raises:
        NoBrokerError: The cluster cannot be started. The message has the end of the log.
        UnfitJavaError: There is no Java that the tests can use.
    """

    def __init__(
        self,
        folder: Path,
        size: int = 1,
        *,
        user: User | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        java, classes = check_java(), jars()
        self.user = user
        self._certificate = Certificate.make(java, folder) if user else None
        names = ["PLAIN", "CONTROLLER", *(["SECURE"] if user else [])]
        free = iter(free_ports(size * len(names)))
        self._ports = {number: {name: next(free) for name in names} for number in range(1, size + 1)}
        self.nodes = [
            Node(
                number,
                folder / f"node-{number}",
                java,
                classes,
                properties(
                    number, folder / f"node-{number}" / "data", self._ports, self._certificate, settings or {}
                ),
                self._addresses("PLAIN")[number - 1],
            )
            for number in self._ports
        ]
        cluster_id = secrets.token_hex(11)  # 22 digits: what Kafka takes, and never a leading minus
        users = ["--add-scram", f"SCRAM-SHA-512=[name={user.name},password={user.password}]"] if user else []
        for node in self.nodes:
            node.format(cluster_id, *users)
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            self.start()
            on_failure.pop_all()

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, as clients take them."""
        return ",".join(self._addresses("PLAIN"))

    @property
    def client(self) -> dict[str, str]:
        """The settings with which a client connects, without encryption."""
        return {"bootstrap.servers": self.bootstrap}

    @property
    def secure_client(self) -> dict[str, str]:
        """The settings with which the user connects, over TLS."""
        assert self.user, "the cluster has no user"
        assert self._certificate
        return {
            "bootstrap.servers": ",".join(self._addresses("SECURE")),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": self.user.name,
            "sasl.password": self.user.password,
            "ssl.ca.location": str(self._certificate.authority),
        }

    def start(self) -> None:
        """Start the nodes that do not run, and wait until all nodes answer."""
        for node in self.nodes:
            if not node.runs:
                node.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until each running node answers and knows all running nodes.

        Raises:
            NoBrokerError: It takes too long, or a node ends meanwhile.
        """
        running = [node for node in self.nodes if node.runs]
        expected = {node.number for node in running}
        for node in running:
            node.wait_until_it_knows(expected)

    def close(self) -> None:
        """Kill all nodes, in whatever state they are."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _addresses(self, listener: str) -> list[str]:
        return [f"127.0.0.1:{ports[listener]}" for ports in self._ports.values()]


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens. They are all held until the last is found, so they differ."""
    with ExitStack() as held:
        found: list[int] = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found


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
