"""Finds out whether a client that is silent has lost all brokers."""

from __future__ import annotations

from typing import Any, Final

from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.failures import kafka_error
from tailrace.log.kafka.library import Consumer, Producer, library

_CUT_OFF_S: Final = 3.0
"""A client that finds no broker for so long is cut off, if there is one: it tries to connect every two seconds."""


def is_cut_off(client: Producer | Consumer, cluster: Cluster) -> bool:
    """Whether a client finds no broker, although one answers.

    A broker that the controller takes for dead answers that there are no brokers; it may live, and be slow. librdkafka (2.16) then
    removes all that it knows, and with ``metadata.recovery.strategy=none`` it never finds one again; without, not always.

    A client that has a connection, and whose question is not answered in time, is not cut off: brokers leave a client that is over its
    quota without an answer for many seconds.
    """
    if _finds_a_broker(client, cluster) or not _finds_a_broker(cluster.client(), cluster):
        return False
    # The brokers may have come back between these two questions.
    return not _finds_a_broker(client, cluster)


def _finds_a_broker(client: Any, cluster: Cluster) -> bool:
    try:
        return bool(client.list_topics(timeout=min(_CUT_OFF_S, cluster.request_s)).brokers)
    except library().KafkaException as error:
        return bool(kafka_error(error).name() == "_TIMED_OUT")  # without any connection it is another
