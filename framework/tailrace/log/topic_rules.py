"""The rules for the topics of an app: how each must be set, what a deviation endangers, and how it is corrected.

``plan`` and ``apply`` of ``tailrace topics`` and the start of a service go by this table. The rows from ``delete.retention.ms`` on are for
Kafka alone: see ``log.kafka.administration``. *Internal* are all topics that the app alone uses; it *writes* these, its outputs and its in-app topics.

=================================  =====================  =========================================  =========  ==================
setting                            of                     must be                                    deviation  apply changes it
=================================  =====================  =========================================  =========  ==================
partitions                         all but outputs        those of the app; 1 of watermarks          error      never
cleanup.policy                     internal               compact: changelog, watermarks, redriven;  error      if empty, or with
                                                          else delete                                           --change-cleanup
retention.ms, retention.bytes      internal               -1                                         error      yes: it keeps more
delete.retention.ms                internal, compacted    1 day or more                              error      yes
                                   tables                 1 day or more                              warning    no
message.timestamp.type             internal               CreateTime                                 error      yes
                                   in-app                 CreateTime                                 error      no
                                   outputs                CreateTime                                 warning    no
message.timestamp.…max.ms          written                without limit                              warning    internal ones
max.message.bytes                  internal               32 MiB or more                             warning    yes
                                   other written          1 MiB or more                              warning    no
min.compaction.lag.ms              watermarks             the retention of their topic               warning    yes
unclean.leader.election.enable     written                false                                      warning    internal ones
replication factor                 written                3, or as many as there are brokers;        warning    never
                                                          or --replication
min.insync.replicas                written                2 of 3 replicas, 1 of fewer; or            warning    internal ones, to
                                                          --min-insync                                          more
                                   written                at most the number of replicas             error      no
cleanup.policy                     tables                 compact                                    error      no
                                   written, without key   delete                                     error      no
cleanup.policy, retention.ms, …    inputs, in-app         any: but history is replayable only as     note       no
                                                          far back as records are kept
=================================  =====================  =========================================  =========  ==================

``apply`` never changes a topic that an app declares: others may use it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from tailrace.core.durations import spelled
from tailrace.core.errors import OptionError, TopicMismatchError, UnknownTopicError
from tailrace.core.suggestions import did_you_mean
from tailrace.log.admin import Circumstances, Finding, NeededTopic, TopicDetails
from tailrace.log.interface import Log, TopicSettings

POLICY, RETENTION_MS, RETENTION_BYTES = "cleanup.policy", "retention.ms", "retention.bytes"
PARTITIONS: Final = "partitions"
_NEVER_DELETED: Final = "-1"


def check_existing(topic: str, known: TopicSettings, wanted: TopicSettings) -> None:
    """Raises TopicMismatchError: a topic that is to be created exists with other settings."""
    if known != wanted:
        raise TopicMismatchError(
            f"the topic exists with {known}; asked for was {wanted}",
            topic=topic,
            hint="Use the settings it has, or another name.",
        )


def unknown_topic(topic: str, known: Iterable[str]) -> UnknownTopicError:
    """The error for a topic that is not among those of a log."""
    hint = did_you_mean(topic, known, "Create it, or correct the name.")
    return UnknownTopicError("there is no such topic in the log", topic=topic, hint=hint)


class PlainAdmin:
    """The administration of a log without brokers; implements ``Admin``. ``keep_all`` removes the retention of a topic."""

    def __init__(self, log: Log, keep_all: Callable[[str], None]) -> None:
        self._log = log
        self._keep_all = keep_all

    deletion_refused = "an embedded log is deleted with its folder"

    def names(self) -> Collection[str]:
        return self._log.topics()

    def details(self, topics: Iterable[str], /) -> Mapping[str, TopicDetails]:
        known = self._log.topics()
        return {name: TopicDetails(known[name]) for name in topics if name in known}

    def new_config(self, _settings: TopicSettings, /) -> dict[str, str]:
        return {}

    def findings(self, need: NeededTopic, found: TopicDetails, about: Circumstances, /) -> list[Finding]:
        return by_level(common_findings(need, found, about))

    def alter(self, topic: str, _changes: Mapping[str, str], /) -> None:
        """See ``Admin.alter``. Only a retention can be safe to change here."""
        self._keep_all(topic)

    def watermark_topics(self, _topic: str, /) -> Collection[str]:
        """See ``Admin.watermark_topics``: watermarks are in no topics."""
        return ()

    def follow(self, _topics: Iterable[str], /) -> None:
        """See ``Admin.follow``."""

    def delete_groups(self, _groups: Iterable[str], /) -> list[str]:
        """Refused."""
        raise OptionError(self.deletion_refused, hint="Delete the folder.")

    def delete_topics(self, _topics: Iterable[str], /) -> None:
        """Refused."""
        raise OptionError(self.deletion_refused, hint="Delete the folder.")


def by_level(found: Iterable[Finding]) -> list[Finding]:
    """Findings, most important first."""
    return sorted(found, key=lambda one: ("error", "warning", "note").index(one.level))


def common_findings(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    """The findings of the rules that hold on any log."""
    yield from _partitions(need, found, about)
    if need.is_internal:
        yield from _kept(need, found, about)
        return
    if need.settings.compacted:
        yield from _table(found)
    if need.role != "output":
        yield from _history(found)


def _partitions(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    wanted = need.settings.partitions
    if need.role == "output" or found.settings.partitions == wanted:
        return
    yield Finding(
        "error",
        PARTITIONS,
        str(found.settings.partitions),
        str(wanted),
        f"the keys of {about.app!r} are spread over {wanted} tasks, and task p reads partition p of every input",
        "partitions are never changed: other keys would be in them. "
        + (
            f"Give the app partitions={found.settings.partitions} again, or another name"
            if need.is_internal
            else f"Give the app partitions={found.settings.partitions}, or copy the topic into one with {wanted} partitions"
        )
        + " (docs/kafka.md, 'Another number of partitions')",
    )


def _kept(need: NeededTopic, found: TopicDetails, about: Circumstances) -> Iterator[Finding]:
    """What is deleted of an internal topic."""
    wanted, config = need.settings, found.config
    policy = config.get(POLICY, "compact" if found.settings.compacted else "delete")
    must = "compact" if wanted.compacted else "delete"
    if policy != must:
        danger = (
            "rows that have not changed for long are deleted"
            if wanted.compacted
            else "records are lost that are needed"
        )
        both = wanted.compacted and "compact" in policy
        safe = bool(config) and (both or about.is_empty(need.name))
        fix = (
            ""
            if safe
            else "the topic has data, and some of it may be lost already: look, then run `tailrace topics apply --change-cleanup`"
        )
        yield Finding("error", POLICY, policy, must, danger, fix, is_safe=safe)
    if wanted.compacted:
        return
    for name, limit in (
        (RETENTION_MS, found.settings.retention_ms),
        (RETENTION_BYTES, found.settings.retention_bytes),
    ):
        if limit is not None:
            why = "records are deleted that a replay, or the app itself, needs"
            yield Finding("error", name, str(limit), _NEVER_DELETED, why, is_safe=True)


def _table(found: TopicDetails) -> Iterator[Finding]:
    """What is wrong with the topic of a table."""
    policy = found.config.get(POLICY, "compact" if found.settings.compacted else "delete")
    if policy == "compact":
        return
    why = "it is the topic of a table, which keeps the last value of each key, however old"
    fix = (
        "give the table another name; or, if no reader needs the events before the last of each key: "
        f"kafka-configs.sh --alter --add-config {POLICY}=compact"
        if found.config
        else "give the table another name"
    )
    yield Finding("error", POLICY, policy, "compact", why, fix)


def _history(found: TopicDetails) -> Iterator[Finding]:
    """How far back the history of an input goes by its settings."""
    one = found.settings
    if one.compacted:
        why = "only the last record of each key is kept, so a replay from the beginning has fewer records than the app has read"
        yield Finding("note", POLICY, found.config.get(POLICY, "compact"), "", why)
    if one.retention_ms is not None:
        why = f"history is replayable for {spelled(one.retention_ms)} by the records' timestamps"
        yield Finding("note", RETENTION_MS, str(one.retention_ms), "", why)
    if one.retention_bytes is not None:
        why = "history is replayable as far back as this size of a partition goes"
        yield Finding("note", RETENTION_BYTES, str(one.retention_bytes), "", why)
