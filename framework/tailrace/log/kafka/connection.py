"""How a process connects to a Kafka cluster: addresses, settings of librdkafka, and the clients made with them.

A cluster is named by a URL, ``kafka://host:9092,other:9092``. With a *prefix*, ``kafka://host:9092/staging.``, all names of topics,
groups and transactional ids begin with it at the brokers, and other topics are not seen: so several environments, or tests, share a
cluster. Every setting of librdkafka passes through, so that TLS, SASL and tuning need no code of ours. Settings come from the
environment (``TAILRACE_KAFKA_SASL_PASSWORD`` is ``sasl.password``) and from the code, which wins.

A name that begins with ``consumer.``, ``producer.`` or ``admin.`` goes to these clients alone. The settings that exactly once rests
on cannot be changed. Values are secrets as far as this package is concerned: no message, log line or ``repr`` contains one.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from tailrace.core.errors import OptionError
from tailrace.log.kafka.library import AdminClient, Consumer, Producer, admin_library, library
from tailrace.log.kafka.outages import Outages

SCHEME: Final = "kafka://"
_ADDRESS = re.compile(r"\s*(?:[^\s:@\[\]]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?\s*")
_PLAIN = re.compile(r"[A-Za-z0-9._-]{0,100}")
_PREFIX = "TAILRACE_KAFKA_"
_Role = Literal["consumer", "producer", "admin"]
_ROLES: tuple[_Role, ...] = ("consumer", "producer", "admin")

_FIXED: Mapping[str, str] = {
    "acks": "a commit must be on all in-sync replicas",
    "auto.offset.reset": "a position is never moved silently",
    "bootstrap.servers": "the addresses are in the URL",
    "enable.auto.commit": "offsets are committed with the outputs",
    "enable.auto.offset.store": "offsets are committed with the outputs",
    "enable.gapless.guarantee": "transactions take care of it",
    "enable.idempotence": "transactions need it",
    "enable.partition.eof": "idleness is found with it",
    "group.id": "it is the name of the app",
    "isolation.level": "only committed records are read",
    "partition.assignment.strategy": "only what has to move is moved",
    "partitioner": "keys are spread by murmur2, as by the clients of the JVM",
    "transactional.id": "it is drawn for each process",
}
"""Settings that are ours, and why."""

_CLIENT: Final = "tailrace"
_WAIT: Final = "fetch.wait.max.ms"
_DEFAULTS: Mapping[str, Any] = {
    "client.id": _CLIENT,
    "log.connection.close": False,
    "reconnect.backoff.max.ms": 2_000,
}
_DEFAULTS_OF: Mapping[_Role, Mapping[str, Any]] = {
    # A consumer learns of the end of a partition with the answer to a fetch, so after this time at the latest.
    "consumer": {_WAIT: 100, "queued.max.messages.kbytes": 16_384},
    "producer": {
        "linger.ms": 20,
        "message.max.bytes": 64 << 20,
        # When all brokers are away for a moment, the other strategy makes a producer forget the coordinator of a group in such a way
        # that adding offsets never returns, whatever its time-out (confluentinc/librdkafka#5456 and #5511). With this one, a client
        # that once gets the answer that there are no brokers never finds one again. Such a producer is replaced: see ``writer``.
        "metadata.recovery.strategy": "none",
        "queue.buffering.max.messages": 500_000,
        "transaction.timeout.ms": 60_000,
    },
    "admin": {},
}
_HISTORY_WAIT_MS: Final = 10
_log = logging.getLogger("tailrace.kafka")
_log.addHandler(logging.NullHandler())  # a command without logs says it once, as its error


class Connection:
    """Makes the clients of one cluster. ``url`` is ``kafka://`` and addresses, separated by commas.

    Raises:
        OptionError: The URL has no address, or a setting is given that cannot be changed.
        MissingExtraError: confluent-kafka is not installed.
    """

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        addresses, prefix = parse_url(url)
        self.addresses = addresses
        self.prefix = prefix
        from_environment = {
            name.removeprefix(_PREFIX).lower().replace("_", "."): value
            for name, value in os.environ.items()
            if name.startswith(_PREFIX)
        }
        self.settings = {**from_environment, **(settings or {})}
        for name in self.settings:
            plain = name.split(".", 1)[1] if name.startswith(tuple(f"{role}." for role in _ROLES)) else name
            if plain in _FIXED:
                raise OptionError(
                    f"the Kafka setting {plain!r} cannot be changed: {_FIXED[plain]}", hint="Remove it."
                )
        self.outages = Outages(_log)
        library()

    def __str__(self) -> str:
        return f"{SCHEME}{self.addresses}" + (f"/{self.prefix}" if self.prefix else "")

    def consumer(self, group: str, **fixed: Any) -> Consumer:
        """A consumer that is given its partitions by hand."""
        return self._made(
            library().Consumer,
            {
                **self._of("consumer"),
                "group.id": self.prefix + group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                **fixed,
            },
        )

    def of_history(self) -> dict[str, Any]:
        """Settings of a consumer that reads up to an end which is there already: it is to learn at once that it has come there."""
        is_default = self._of("consumer")[_WAIT] == _DEFAULTS_OF["consumer"][_WAIT]
        return {_WAIT: _HISTORY_WAIT_MS} if is_default else {}

    def of_members(self) -> dict[str, Any]:
        """Settings of a consumer that is a member of a group."""
        given, found = self._of("consumer"), dict[str, Any]()
        if given["client.id"] == _CLIENT:  # ``KafkaAdmin.members`` reads the process from it
            found["client.id"] = f"{_CLIENT}-{socket.gethostname()}-{os.getpid()}"
        if given.get("group.protocol") != "consumer":
            found["partition.assignment.strategy"] = "cooperative-sticky"
            found["heartbeat.interval.ms"] = given.get("heartbeat.interval.ms", 1_000)
        return found

    def producer(self, transactional_id: str) -> Producer:
        """A transactional producer."""
        return self.plain_producer({"transactional.id": self.prefix + transactional_id})

    @property
    def transaction_timeout_ms(self) -> int:
        """For how long a transaction may be open before the brokers abort it."""
        try:
            return int(self._of("producer")["transaction.timeout.ms"])
        except ValueError:
            return 0  # the library refuses it, with its reason

    def plain_producer(self, settings: Mapping[str, Any]) -> Producer:
        """An idempotent producer. The caller's settings decide whether it is transactional."""
        fixed = {"enable.idempotence": True, "acks": "all"}
        return self._made(library().Producer, {**self._of("producer"), **fixed, **settings})

    def admin(self) -> AdminClient:
        """A client for topics and offsets."""
        return self._made(admin_library().AdminClient, self._of("admin"))

    def _made(self, client: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
        """A client with these settings."""
        try:
            return client(settings)
        except library().KafkaException as error:
            said = str(error.args[0].str())
            raise OptionError(
                "the Kafka client does not take its settings"
                + ("" if any(one and one in said for one in self.settings.values()) else f": {said}"),
                hint="Correct the settings that you have given: "
                f"{', '.join(sorted(self.settings)) or 'none'} (environment: {_PREFIX}…).",
            ) from None

    def _of(self, role: _Role) -> dict[str, Any]:
        """The settings of a client."""
        plain = {name: value for name, value in self.settings.items() if name.split(".", 1)[0] not in _ROLES}
        own = {
            name.removeprefix(f"{role}."): value
            for name, value in self.settings.items()
            if name.startswith(f"{role}.")
        }
        return {
            **_DEFAULTS,
            **_DEFAULTS_OF[role],
            **plain,
            **own,
            "bootstrap.servers": self.addresses,
            "error_cb": self.outages.failed,
            "logger": self.outages,
        }


def parse_url(url: str) -> tuple[str, str]:
    """The addresses and the prefix in the URL of a cluster.
    Raises OptionError: it has no address, or a wrong address or prefix.
    """
    addresses, _, prefix = url.removeprefix(SCHEME).partition("/")
    named = all(map(_ADDRESS.fullmatch, addresses.split(",")))
    if not url.startswith(SCHEME) or not named or not _PLAIN.fullmatch(prefix):
        raise OptionError(
            f"{SCHEME}… needs the addresses of brokers, and may have a prefix for names",
            hint="Write kafka://host:9092,other:9092 or kafka://host:9092/prefix. User and password are settings: TAILRACE_KAFKA_SASL_USERNAME, …",
        )
    return addresses, prefix
