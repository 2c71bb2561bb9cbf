"""Finds out what the brokers' errors leave out: which topic is denied, and why a transaction waits. All of it is asked of the brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from tailrace.log.admin import MIN_INSYNC
from tailrace.log.kafka.library import Consumer, KafkaError, Producer, admin_library, library

if TYPE_CHECKING:
    from tailrace.log.kafka.cluster import Cluster

_DENIED: Final = "TOPIC_AUTHORIZATION_FAILED"
_REQUEST_S: Final = 2.0
"""For how long an answer is waited for: the caller has waited before."""
_CUT_OFF_S: Final = 3.0
"""A client that finds no broker for so long is cut off, if there is one: it tries to connect every two seconds."""


def is_hidden(cluster: Cluster, topic: str) -> KafkaError | None:
    """The error by which the brokers hide a topic from the user, whether it exists or not; None if they do not."""
    answer = cluster.ask_ids([topic])[topic]
    try:
        cluster.answered(answer)
    except library().KafkaException as error:
        found = error.args[0]
        return found if found.name() == _DENIED else None
    return None


def topics_without(cluster: Cluster, operation: str, topics: Iterable[str]) -> list[str]:
    """Those of these topics on which the user lacks an operation, for example "Write"; none if the brokers do not answer."""
    wanted = getattr(admin_library().AclOperation, operation.upper())
    names = library().TopicCollection([cluster.prefix + topic for topic in topics])
    asked = cluster.client().describe_topics(
        names, include_authorized_operations=True, request_timeout=_REQUEST_S
    )
    found: list[str] = []
    for name, answer in asked.items():
        try:
            is_allowed = wanted in (cluster.answered(answer).authorized_operations or [wanted])
        except library().KafkaException as error:
            is_allowed = error.args[0].name() != _DENIED
        if not is_allowed:
            found.append(name.removeprefix(cluster.prefix))
    return found


def too_few_replicas(cluster: Cluster, topics: Iterable[str]) -> str:
    """Which partition of these topics takes no records as too few of its replicas are in sync; empty if none is known."""
    try:
        listed = cluster.client().list_topics(timeout=_REQUEST_S).topics
        admin = admin_library()
        names = [cluster.prefix + topic for topic in topics]
        resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in names]
        asked: Any = cluster.client().describe_configs(resources, request_timeout=_REQUEST_S)
        for resource, answer in asked.items():
            needed = int(cluster.answered(answer)[MIN_INSYNC].value)
            for number, partition in listed[resource.name].partitions.items():
                if len(partition.isrs) < needed:
                    return (
                        f"{resource.name.removeprefix(cluster.prefix)!r} partition {number} has {len(partition.isrs)} of "
                        f"{len(partition.replicas)} replicas in sync, and needs {needed} (min.insync.replicas)"
                    )
    except (library().KafkaException, KeyError):
        pass
    return ""


def is_cut_off(client: Producer | Consumer, cluster: Cluster) -> bool:
    """Whether a client finds no broker, although one answers.

    A broker that the controller takes for dead answers that there are no brokers; it may live, and be slow. librdkafka (2.16) then
    removes all that it knows, and with ``metadata.recovery.strategy=none`` it never finds one again; without, not always.
    """
    if _finds_a_broker(client, cluster) or not _finds_a_broker(cluster.client(), cluster):
        return False
    # The brokers may have come back between these two questions.
    return not _finds_a_broker(client, cluster)


def _finds_a_broker(client: Any, cluster: Cluster) -> bool:
    try:
        return bool(client.list_topics(timeout=min(_CUT_OFF_S, cluster.request_s)).brokers)
    except library().KafkaException:
        return False
