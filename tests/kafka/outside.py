"""What others do to the topics of a log on Kafka: clients that know nothing of the framework."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tailrace.core.declare.plan import Plan
from tailrace.log import Writer
from tailrace.log.kafka import KafkaLog
from tests.runtime.processes import wait_until

_ANSWER_S = 60.0


class Outside:
    """The topics and groups of a log, by the names that they have in the log. ``brokers`` and ``prefix`` are the parts of its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.brokers, _, self.prefix = url.removeprefix("kafka://").partition("/")
        self.admin = AdminClient({"bootstrap.servers": self.brokers})

    def append(self, topic: str, key: bytes | None, value: bytes, partition: int = 0) -> None:
        """A record of another program, outside of any transaction."""
        producer = Producer({"bootstrap.servers": self.brokers})
        producer.produce(self.prefix + topic, value, key, partition)
        assert producer.flush(_ANSWER_S) == 0

    def names(self) -> set[str]:
        """All topics, also those that the log does not list."""
        found = self.admin.list_topics(timeout=_ANSWER_S).topics
        return {name.removeprefix(self.prefix) for name in found if name.startswith(self.prefix)}

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic as an operator would, with the brokers' defaults."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        name = self.prefix + topic
        self.admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result()
        wait_until(lambda: topic in self.names(), f"{topic} is there")

    def configure(self, topic: str, **config: str) -> None:
        """Change settings of a topic, and wait until the broker has applied it: the controller answers earlier."""
        wanted = {name.replace("_", "."): value for name, value in config.items()}
        with closing(KafkaLog(self.url)) as log:
            log.admin.alter(topic, wanted)
            wait_until(
                lambda: wanted.items() <= log.admin.details([topic])[topic].config.items(),
                f"the settings of {topic} are applied",
            )

    def shorten_session(self, app: str) -> None:
        """Let the brokers find soon that a member of a group is dead, where the protocol is ``consumer``."""
        entry = ConfigEntry(
            "consumer.session.timeout.ms", "3000", incremental_operation=AlterConfigOpType.SET
        )
        group = ConfigResource(ResourceType.GROUP, self.prefix + app, incremental_configs=[entry])
        for done in self.admin.incremental_alter_configs([group]).values():
            done.result()

    def delete_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """Delete records, as retention does."""
        at = At(self.prefix + topic, partition, offset)

        def is_done() -> bool:
            try:
                for done in self.admin.delete_records([at]).values():
                    done.result()
            except KafkaException as error:
                if error.args[0].name() != "POLICY_VIOLATION":
                    raise
                return False  # the broker has not applied yet that the topic is no longer compacted
            return True

        wait_until(is_done, "the records are deleted")

    def delete(self, *topics: str) -> None:
        """Delete topics."""
        for done in self.admin.delete_topics([self.prefix + topic for topic in topics]).values():
            done.result()
        wait_until(lambda: not self.names().intersection(topics), "they are gone")

    def replace(self, *topics: str) -> None:
        """Delete topics, and create them again with the same settings."""
        with closing(KafkaLog(self.url)) as log:
            known = dict(log.topics())
        self.delete(*topics)
        with closing(KafkaLog(self.url)) as log:
            for topic in topics:
                log.create_topic(topic, known[topic])

    def expire(self, app: str) -> None:
        """Let the groups of an app lose their offsets, as after a week without a process."""
        for group in (app, f"{app}#begun"):
            for done in self.admin.delete_consumer_groups([self.prefix + group]).values():
                with suppress(KafkaException):  # it has no offsets
                    done.result()

    def named_producers(self, plan: Plan) -> dict[int, str]:
        """By task, the transactional id that the group names for it; see ``tailrace.log.kafka.process_transaction``."""
        places = [At(self.prefix + plan.tape_topic, number) for number in range(plan.partitions)]
        with closing(
            Consumer({"bootstrap.servers": self.brokers, "group.id": self.prefix + plan.app})
        ) as group:
            found = group.committed(places, _ANSWER_S)
            return {one.partition: (one.metadata or "").partition("\n")[0] for one in found}


class Stuck:
    """A client of the library, of which one call does not come back before it is released."""

    def __init__(self, client: Any, call: str) -> None:
        self.released = threading.Event()
        self._client, self._call = client, call

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        return (lambda *_, **__: self.released.wait()) if name == self._call else call

    def __len__(self) -> int:
        return len(self._client)


def await_written(log: KafkaLog, topic: str, behind: int = 0, writer: Writer | None = None) -> None:
    """Wait until a record that was appended in a transaction is at the broker, in partition 0 behind an offset."""

    def is_written() -> bool:
        if writer is not None:
            writer.append([])  # hands over what has not been sent
        return log.end_offset(topic, 0) > behind

    wait_until(is_written, "the record is at the broker")


def messages(bootstrap: str, topic: str) -> list[list[Message]]:
    """The committed records of a topic, by partition, as another program reads them."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "outside",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    with closing(reader):
        count = len(reader.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions)
        reader.assign([At(topic, number, OFFSET_BEGINNING) for number in range(count)])
        found: list[list[Message]] = [[] for _ in range(count)]
        left, until_s = set(range(count)), time.monotonic() + _ANSWER_S
        while left:
            assert time.monotonic() < until_s, f"{topic} is not read to its end"
            for message in reader.consume(10_000, 0.2):
                error, number = message.error(), message.partition()
                if error is None:
                    found[number or 0].append(message)
                else:
                    assert error.name() == "_PARTITION_EOF", error
                    left.discard(number or 0)
        return found
