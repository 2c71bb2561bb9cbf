"""What an operator asks of a log: the topics there are and their settings, changes of these, deletions.

Services need none of it to read and write. They ask for the settings of their topics when they start, and change nothing. What only
some logs have is data here: replicas, settings by their names in Kafka, and what is found wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from tailrace.log.interface import TopicSettings

Role: TypeAlias = Literal[
    "changelog",
    "tape",
    "inbox",
    "dead-letters",
    "redriven",
    "repartition",
    "watermarks",
    "in-app",
    "input",
    "output",
]
"""What a topic is for an app. The app declares those that are ``input``, ``output`` or both (``in-app``); the others are internal."""
Level: TypeAlias = Literal["error", "warning", "note"]
MIN_INSYNC: Final = "min.insync.replicas"


class NeededTopic(NamedTuple):
    """A topic that an app needs. ``settings`` are those that it is created with."""

    name: str
    role: Role
    settings: TopicSettings
    follows: str = ""
    """The topic of which it has the watermarks, on a log that keeps these in topics."""
    is_keyless: bool = False
    """Whether the app declares it without a key."""

    @property
    def is_internal(self) -> bool:
        """Whether it belongs to the app alone."""
        return self.role not in ("in-app", "input", "output")


class TopicDetails(NamedTuple):
    """A topic as the log knows it."""

    settings: TopicSettings
    replicas: int | None = None
    """Of the partition that has the fewest; None on a log without replicas."""
    config: Mapping[str, str] = {}
    """All settings by their names in Kafka, those of the brokers included; empty on another log."""
    brokers: int = 0
    """The number of brokers that are up."""

    @property
    def min_insync(self) -> int | None:
        """The number of replicas that must have a commit."""
        return int(self.config[MIN_INSYNC]) if self.config else None


class Finding(msgspec.Struct, frozen=True):
    """A setting of a topic that is not as it must be; or, as a ``note``, one that the operator should know."""

    level: Level
    setting: str
    found: str
    wanted: str
    why: str
    """What it endangers."""
    fix: str = ""
    """What to do about it, if ``apply`` does not change it."""
    is_safe: bool = False
    """Whether ``apply`` changes it."""

    def __str__(self) -> str:
        """For a person: ``retention.ms is 604800000, and must be -1: …``."""
        must = f", and must be {self.wanted}" if self.wanted else ""
        return f"{self.setting} is {self.found}{must}: {self.why}"


class Circumstances(NamedTuple):
    """What the rules for a topic need to know beside the topic."""

    app: str
    is_empty: Callable[[str], bool]
    """Whether a topic has never had a record."""
    followed: TopicSettings | None = None
    """The topic that a topic of watermarks is about."""


class Admin(Protocol):
    """The operator's side of a log."""

    @property
    def deletion_refused(self) -> str:
        """Why topics of this log cannot be deleted; empty if they can."""
        ...

    def names(self) -> Collection[str]:
        """The names of all topics, those included that ``Log.topics`` leaves out."""
        ...

    def details(self, topics: Iterable[str], /) -> Mapping[str, TopicDetails]:
        """Those of these topics that exist."""
        ...

    def new_config(self, settings: TopicSettings, /) -> dict[str, str]:
        """The settings by name that a topic would be created with."""
        ...

    def findings(self, need: NeededTopic, found: TopicDetails, about: Circumstances, /) -> list[Finding]:
        """All that is to say of a topic that an app needs, most important first. See ``topic_rules``."""
        ...

    def alter(self, topic: str, changes: Mapping[str, str], /) -> None:
        """Change the settings that findings name as safe; the others stay."""
        ...

    def watermark_topics(self, topic: str, /) -> Collection[str]:
        """The names of the topics in which the log keeps the watermarks of a topic; empty if it needs none."""
        ...

    def follow(self, topics: Iterable[str], /) -> None:
        """Create ``watermark_topics`` of these topics, which services create otherwise when they need them."""
        ...

    def delete_groups(self, groups: Iterable[str], /) -> list[str]:
        """Delete groups with their offsets. Returns those that existed. A group with live members is an error."""
        ...

    def delete_topics(self, topics: Iterable[str], /) -> None:
        """Delete topics, and wait until they are gone. Those that do not exist are left out."""
        ...
