"""A broker with TLS, SCRAM and an authorizer, and users with the rights that docs/kafka.md lists for a service, or without one of them. And
the shop as a process that connects as such a user, fed and looked at by one who may do everything.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tests.kafka.broker.cluster import Cluster, User
from tests.kafka.processes import SESSION
from tests.kafka.shop import PLAN, Order, Total
from tests.runtime.processes import Process, wait_until

REAUTHENTICATION_MS: Final = 4_000
"""A connection that is older has to prove its password again."""
SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # who comes without TLS: the brokers, and the tests
    "listener.name.secure.connections.max.reauth.ms": str(REAUTHENTICATION_MS),
    "group.initial.rebalance.delay.ms": "0",
}
_ANSWER_S: Final = 30.0


class Right(NamedTuple):
    """An operation on a resource, or on all whose names begin with ``name``."""

    kind: ResourceType
    name: str
    operation: AclOperation
    is_prefix: bool = False

    def binding(self, user: User, permission: AclPermissionType) -> AclBinding:
        """As the brokers take it."""
        pattern = ResourcePatternType.PREFIXED if self.is_prefix else ResourcePatternType.LITERAL
        return AclBinding(self.kind, self.name, pattern, f"User:{user.name}", "*", self.operation, permission)


def rights_of_service(app: str, prefix: str, inputs: Iterable[str], outputs: Iterable[str]) -> list[Right]:
    """What docs/kafka.md lists, and no more."""
    of, topic = AclOperation, ResourceType.TOPIC
    found = [
        Right(topic, prefix + name, one)
        for names, operations in (
            (inputs, (of.READ, of.DESCRIBE_CONFIGS)),
            (outputs, (of.WRITE, of.DESCRIBE_CONFIGS)),
            (
                [f"{name}.{kind}" for name in (*inputs, *outputs) for kind in ("watermarks", "publishers")],
                (of.READ, of.WRITE, of.DESCRIBE_CONFIGS, of.CREATE),
            ),
        )
        for name in names
        for one in operations
    ]
    found += [
        Right(topic, f"{prefix}{app}.", one, is_prefix=True)
        for one in (of.READ, of.WRITE, of.DESCRIBE_CONFIGS, of.CREATE)
    ]
    found += [Right(ResourceType.GROUP, prefix + name, of.READ) for name in (app, f"{app}#begun")]
    return [*found, Right(ResourceType.TRANSACTIONAL_ID, prefix + app, of.WRITE, is_prefix=True)]


def rights_to_follow(app: str, prefix: str) -> list[Right]:
    """What docs/kafka.md lists for a service that goes by the watermarks of another app, besides its own rights."""
    of = AclOperation
    return [
        Right(ResourceType.TOPIC, f"{prefix}{app}.tape", one) for one in (of.DESCRIBE, of.DESCRIBE_CONFIGS)
    ]


@dataclass(frozen=True, slots=True)
class Access:
    """What a process needs to connect as a user."""

    url: str
    environment: dict[str, str]
    user: User


class Guarded:
    """The broker, which ``close`` ends."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder, user=User("first", secrets.token_hex(8)), settings=SETTINGS)
        self.admin = AdminClient({**self.cluster.client})
        """Of who may do everything."""

    def close(self) -> None:
        self.cluster.close()

    def url(self, prefix: str) -> str:
        """A log for who may do everything."""
        return f"kafka://{self.cluster.bootstrap}/{prefix}"

    def user(self) -> User:
        """A new user, who may do nothing."""
        user = User(f"user-{secrets.token_hex(4)}", f"secret-{secrets.token_hex(8)}")
        self.set_password(user)
        return user

    def set_password(self, user: User) -> None:
        """Create a user, or give one another password."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        change = UserScramCredentialUpsertion(user.name, info, user.password.encode())
        for done in self.admin.alter_user_scram_credentials([change]).values():
            done.result(_ANSWER_S)

    def grant(self, user: User, rights: Iterable[Right]) -> None:
        """Give rights."""
        self._create(user, rights, AclPermissionType.ALLOW)

    def deny(self, user: User, rights: Iterable[Right]) -> None:
        """Deny rights, whatever is granted."""
        self._create(user, rights, AclPermissionType.DENY)

    def _create(self, user: User, rights: Iterable[Right], permission: AclPermissionType) -> None:
        bindings = [one.binding(user, permission) for one in rights]
        for done in self.admin.create_acls(bindings).values():
            done.result(_ANSWER_S)

    def access(self, user: User, prefix: str) -> Access:
        """How a process connects as a user."""
        client = self.cluster.secure_client | {"sasl.username": user.name, "sasl.password": user.password}
        address = client.pop("bootstrap.servers")
        names = {f"TAILRACE_KAFKA_{name.upper().replace('.', '_')}": value for name, value in client.items()}
        return Access(f"kafka://{address}/{prefix}", names, user)


def with_password(user: User, password: str) -> User:
    """The same user with another password."""
    return replace(user, password=password)


APP = "tests.kafka.shop:app"
KEYS = 7


class Orders:
    """The shop as such a process; ``close`` ends its processes."""

    def __init__(self, guarded: Guarded, prefix: str, folder: Path) -> None:
        self.guarded = guarded
        self.prefix = prefix
        self.folder = folder
        self.log = KafkaLog(guarded.url(prefix))
        self.fed = 0
        self._processes: list[Process] = []

    def create_topics(self) -> None:
        """All of them, so that a service needs to create none."""
        prepare_topics(self.log, PLAN, create_declared=True)

    def create_declared(self) -> None:
        """Those that the app declares."""
        for name in ("orders", "totals"):
            self.log.create_topic(name, TopicSettings(PLAN.partitions))

    def rights(self) -> list[Right]:
        """Of the service."""
        return rights_of_service("shop", self.prefix, ["orders"], ["totals"])

    def user(self) -> User:
        """A user with all rights of the service."""
        user = self.guarded.user()
        self.guarded.grant(user, self.rights())
        return user

    def access(self, user: User) -> Access:
        """How a process connects as a user."""
        return self.guarded.access(user, self.prefix)

    def start(self, user: User, *options: object, **environment: str) -> Process:
        """Start the service as a user."""
        access = self.access(user)
        made = Process(
            self.folder / f"service-{len(self._processes)}.log",
            *("tailrace", "run", APP, "--log", access.url, "--state", self.folder / "state"),
            *("--commit-interval", "50ms", *options),
            environment={**SESSION, **access.environment, **environment},
        )
        self._processes.append(made)
        return made

    def feed(self, count: int) -> None:
        """Orders, each a second after the one before."""
        made = [Order(f"k{n % KEYS}", n * 1_000) for n in range(self.fed, self.fed + count)]
        self.log.append_all(
            Output("orders", one.key.encode(), msgspec.json.encode(one), one.at_ms) for one in made
        )
        self.fed += count

    def counts(self) -> dict[str, list[int]]:
        """By key, the counts in the output, in their order."""
        found: dict[str, list[int]] = {}
        for record in self.records("totals"):
            one = msgspec.json.decode(record or b"", type=Total)
            if one.count > 0:
                found.setdefault(one.key, []).append(one.count)
        return found

    def expected(self) -> dict[str, list[int]]:
        """What the counts are to be."""
        numbers = [n % KEYS for n in range(self.fed)]
        return {f"k{key}": [*range(1, numbers.count(key) + 1)] for key in sorted({*numbers})}

    def await_all(self, process: Process, patience_s: float = 120) -> None:
        """Until each order was counted; then each was counted once."""

        def done() -> bool:
            assert process.code() is None, process.text()[-3_000:]
            return sum(map(len, self.counts().values())) >= self.fed

        wait_until(done, "all orders are counted", patience_s)
        assert self.counts() == self.expected()

    def records(self, topic: str) -> Iterator[bytes | None]:
        """The values of all committed records of a topic."""
        for number in range(self.log.partitions(topic)):
            yield from (one.value for one in scan(self.log, topic, number))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.log.close()
