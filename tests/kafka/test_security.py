"""A service with the rights that docs/kafka.md lists works. Without one of them it ends soon, and names the resource and the right.

Credentials that are wrong at the start end a service. Those that become wrong under it delay it. No secret is ever shown.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tailrace.core.errors import LogDeniedError
from tailrace.core.records import InputRecord
from tailrace.history.reading.stretches import scan
from tailrace.history.reading.upstream_watermarks import tasks_beside
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.library import Message
from tests.cli.commands import Ended, run
from tests.kafka.broker.cluster import Cluster, User
from tests.kafka.processes import SESSION, Members, stopped
from tests.kafka.visits import FIRST, KEYS, PLAN, TASKS, Visits
from tests.runtime.processes import Process, wait_until

TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
ANSWER_S = 30.0
SOON_S = 60.0
"""Generous, for a busy machine: what waits for an answer of the brokers in vain does so for longer."""
REAUTHENTICATION_MS = 4_000
"""A connection that is older has to prove its password again."""
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # who comes without TLS: the brokers, and the tests
    "listener.name.secure.connections.max.reauth.ms": str(REAUTHENTICATION_MS),
}


class Right(NamedTuple):
    """An operation on a resource, or on all whose names begin with ``name``."""

    kind: ResourceType
    name: str
    operation: AclOperation
    is_prefix: bool = False


def rights_of_service(app: str, topic_in: str, topic_out: str) -> Iterator[Right]:
    """What docs/kafka.md lists, and no more."""
    of = AclOperation
    own = (of.READ, of.WRITE, of.DESCRIBE_CONFIGS, of.CREATE)
    kinds = ("watermarks", "publishers")
    for names, operations in (
        ([topic_in, *(f"{topic_in}.{kind}" for kind in kinds)], (of.READ, of.DESCRIBE_CONFIGS)),
        ([topic_out], (of.WRITE, of.DESCRIBE_CONFIGS)),
        ([f"{topic_out}.{kind}" for kind in kinds], own),
    ):
        yield from (Right(TOPIC, name, one) for name in names for one in operations)
    yield from (Right(TOPIC, f"{app}.", one, is_prefix=True) for one in own)
    yield from (Right(GROUP, name, of.READ) for name in (app, f"{app}#begun"))
    yield Right(TRANSACTION, app, of.WRITE, is_prefix=True)


class Guarded:
    """A broker with TLS, SCRAM and an authorizer."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder, user=User("first", secrets.token_hex(8)), settings=SETTINGS)
        self.admin = AdminClient({**self.cluster.client})
        """Of who may do everything."""

    def set_password(self, user: User) -> None:
        """Create a user, or give one another password."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        change = UserScramCredentialUpsertion(user.name, info, user.password.encode())
        for answer in self.admin.alter_user_scram_credentials([change]).values():
            answer.result(ANSWER_S)

    def permit(self, user: User, prefix: str, rights: Iterable[Right], *, denied: bool = False) -> None:
        """Give rights, or deny them whatever is granted."""
        permission = AclPermissionType.DENY if denied else AclPermissionType.ALLOW
        bindings = [
            AclBinding(
                one.kind,
                prefix + one.name,
                ResourcePatternType.PREFIXED if one.is_prefix else ResourcePatternType.LITERAL,
                f"User:{user.name}",
                "*",
                one.operation,
                permission,
            )
            for one in rights
        ]
        for answer in self.admin.create_acls(bindings).values():
            answer.result(ANSWER_S)


class Service(Visits):
    """The app that counts visits, run by users of the broker; fed and looked at by one who may do everything. It creates its own topics."""

    def __init__(self, guarded: Guarded, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.guarded, self.folder, self.prefix = guarded, folder, f"{secrets.token_hex(6)}."
        super().__init__(f"kafka://{guarded.cluster.bootstrap}/{self.prefix}", prepared=False)
        for name in ("came", "visited"):
            self.log.create_topic(name, TopicSettings(PLAN.partitions))
        self._patch = monkeypatch
        client = {**guarded.cluster.secure_client}
        self.url = f"kafka://{client.pop('bootstrap.servers')}/{self.prefix}"
        self._client = client
        self.members = Members(self.url, folder, SESSION)

    def user(self) -> User:
        """A new user with all rights of the service."""
        user = User(f"user-{secrets.token_hex(4)}", f"secret-{secrets.token_hex(8)}")
        self.guarded.set_password(user)
        self.guarded.permit(user, self.prefix, rights_of_service("visits", "came", "visited"))
        return user

    def become(self, user: User) -> None:
        """Let this process, and those that it starts, connect as a user."""
        client = self._client | {"sasl.username": user.name, "sasl.password": user.password}
        for name, value in client.items():
            self._patch.setenv(f"TAILRACE_KAFKA_{name.upper().replace('.', '_')}", value)

    def start(self, user: User) -> Process:
        """The service as a process of a user."""
        self.become(user)
        return self.members.start(FIRST, "state")

    def run(self, user: User) -> Ended:
        """The service in this process, as a user, up to the end of what there is."""
        self.become(user)
        return run("run", FIRST, "--log", self.url, "--state", self.folder / "state", "--until-end")

    def assert_secret(self, *hidden: str) -> None:
        """None of these texts is in what processes have said, in their folders, or in the log."""
        said = [(str(path), path.read_bytes()) for path in self.folder.rglob("*") if path.is_file()]
        for topic in self.log.topics():
            for number in range(self.log.partitions(topic)):
                said += [(topic, one.value or b"") for one in scan(self.log, topic, number)]
        assert not [where for where, data in said for one in hidden if one.encode() in data]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The broker."""
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.cluster.close()


@pytest.fixture
def service(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service(guarded, tmp_path, monkeypatch)
    with closing(made.log), closing(made.members):
        yield made


def test_a_service_with_the_rights_of_the_documentation_works_exactly_once(service: Service) -> None:
    """Over TLS, as a user of SCRAM. It is killed."""
    user = service.user()
    service.feed(10)
    process = service.start(user)
    service.await_all(process)
    service.feed(6)
    process.kill()
    process = service.start(user)
    until_s = time.monotonic() + 1.5 * REAUTHENTICATION_MS / 1_000
    while time.monotonic() < until_s:  # its connections are authenticated again meanwhile
        service.feed(1)
        time.sleep(0.1)
    service.await_all(process)
    stopped(process)


def test_following_watermarks_needs_no_right_to_publish_them(service: Service) -> None:
    """The writer of the topic has started before."""
    with closing(service.log.writer("up")) as writer:
        writer.commit({}, "", {"came": 5})
    service.become(service.user())
    place = TopicPartition("came", 0)
    with closing(KafkaLog(service.url)) as log:
        with closing(log.reader({place: 0})) as reader:
            assert [one.watermark_ms for one in reader.published(*place)] == [5]
        writer = log.writer("visits-other")
        with pytest.raises(LogDeniedError, match="watermarks"):
            writer.commit({}, "", {"came": 9})


def test_reading_needs_no_right_on_a_group(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers deny the group that readers name, which is not the app's."""
    service.become(service.user())
    service.feed(1)
    read, denials = list[InputRecord](), list[object]()
    with (
        closing(KafkaLog(service.url)) as log,
        closing(log.reader({TopicPartition("came", n): 0 for n in TASKS})) as reader,
    ):
        heard = reader._heard

        def noted(message: Message) -> None:
            denials.append(message.topic() or message.error().name())
            heard(message)

        monkeypatch.setattr(reader, "_heard", noted)

        def is_read() -> bool:
            for number in TASKS:
                read.extend(reader.fetch("came", number, 100).records)
            reader.wait(0.1)
            return len(read) >= KEYS and "GROUP_AUTHORIZATION_FAILED" in denials

        wait_until(is_read, "all is read, and the group is denied", SOON_S)
        assert len(read) == KEYS


def test_a_reader_that_may_not_see_all_tasks_of_a_writer_is_refused(service: Service) -> None:
    """It would not wait for a task that has not committed yet, whose events would be late."""
    service.log.create_topic("up.tape", TopicSettings(3))
    user = service.user()
    service.become(user)
    with closing(KafkaLog(service.url)) as log:
        with pytest.raises(LogDeniedError, match=r"rights on the topic '.*\.up\.tape'"):
            tasks_beside("up-0", log)
        assert tasks_beside("append-cafe", log) == []
        # What docs/kafka.md lists for a service that goes by the watermarks of another app, besides its own rights.
        to_follow = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        service.guarded.permit(user, service.prefix, [Right(TOPIC, "up.tape", one) for one in to_follow])

        def found() -> list[str]:
            with suppress(LogDeniedError):
                return tasks_beside("up-0", log)
            return []

        wait_until(lambda: found() == ["up-0", "up-1", "up-2"], "the rights count", SOON_S)


DENIED = {
    "an input": (Right(TOPIC, "came", AclOperation.READ), "{prefix}came"),
    "settings": (Right(TOPIC, "came", AclOperation.DESCRIBE_CONFIGS), "topic '{prefix}came'"),
    "an output": (Right(TOPIC, "visited", AclOperation.WRITE), "{prefix}visited"),
    "the changelog": (
        Right(TOPIC, "visits.changelog", AclOperation.READ),
        "topic '{prefix}visits.changelog'",
    ),
    "the group": (Right(GROUP, "visits", AclOperation.READ), "group '{prefix}visits'"),
    "the transactional id": (
        Right(TRANSACTION, "visits-process", AclOperation.WRITE, is_prefix=True),
        "transactional id '{prefix}visits-process-",
    ),
    "creating topics": (
        Right(TOPIC, "visits.", AclOperation.CREATE, is_prefix=True),
        "topic '{prefix}visits.",
    ),
}


@pytest.mark.parametrize("name", DENIED)
def test_a_right_that_is_missing_is_named_with_its_resource(service: Service, name: str) -> None:
    right, told = DENIED[name]
    user = service.user()
    service.feed(1)
    if name == "the changelog":  # something is to be read there
        assert service.run(service.user()).code == 0
        shutil.rmtree(service.folder / "state")
    service.guarded.permit(user, service.prefix, [right], denied=True)
    begun_s = time.monotonic()
    ended = service.run(user)
    assert time.monotonic() - begun_s < SOON_S
    assert ended.code == 1
    for one in ("Kafka denies it: ", told.format(prefix=service.prefix), "docs/kafka.md"):
        assert one in ended.err


# --- credentials

WRONG = "a wrong password"


def test_a_wrong_password_at_the_start_is_named(service: Service) -> None:
    user = service.user()
    ended = service.run(user._replace(password=WRONG))
    assert ended.code == 1
    for one in ("Kafka denies it", "invalid credentials", "TAILRACE_KAFKA_SASL_PASSWORD"):
        assert one in ended.err
    (service.folder / "said").write_text(ended.out + ended.err)
    service.assert_secret(WRONG, user.password)


def test_a_service_whose_password_was_changed_waits_until_it_is_right_again(service: Service) -> None:
    user = service.user()
    process = service.start(user)
    service.feed(2)
    service.await_all(process)
    service.guarded.set_password(user._replace(password=WRONG))
    wait_until(lambda: "denies the connection" in process.text(), "it says that it is refused", SOON_S)
    # Before that, a connection may still be in use that is not refused yet.
    wait_until(lambda: not service.log.admin.members("visits"), "its group has lost it", SOON_S)
    service.feed(2)
    assert process.code() is None
    assert sum(map(len, service.counts().values())) < service.rounds * KEYS  # nothing gets through
    service.guarded.set_password(user)
    service.await_all(process)
    stopped(process)
    told = [line for line in process.text().splitlines() if '"tailrace.kafka"' in line]
    assert 2 <= len([line for line in told if "SASL" in line or "answers again" in line]) <= 4, told
    assert "Kafka answers again" in process.text()
    service.assert_secret(WRONG, user.password)
