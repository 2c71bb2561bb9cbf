"""The topics that apps need, compared with those that a log has; and what is missing created.

Theory. A topic that several apps need is one entry, with the role that it has for each. An entry is

    ``create``     the topic is missing, and ``apply`` creates it
    ``change``     ``apply`` changes some of its settings, which ``log.topic_rules`` names
    ``refuse``     something differs that ``apply`` does not change; each finding has the reason, and what to do
    ``none``       it is right; there may be notes

Topics with watermarks are entries where the log has such. ``redriven`` is created when letters are redriven for the
first time, so it is an entry only if it exists.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import TopicMismatchError
from tailrace.core.names import redriven_of
from tailrace.history.reading.app_topics import followed_topics, needed_topics
from tailrace.history.reading.generations import located
from tailrace.log.admin import Circumstances, Finding, NeededTopic, Role
from tailrace.log.interface import StoredLog, TopicSettings
from tailrace.log.options import NewTopics
from tailrace.log.topic_rules import POLICY

_log = logging.getLogger("tailrace.service")
Action: TypeAlias = Literal["none", "create", "change", "refuse"]


class PlannedTopic(msgspec.Struct):
    """A topic that apps need."""

    topic: str
    roles: dict[str, Role]
    """By app."""
    action: Action
    partitions: int
    replicas: int | None
    """None: those of the brokers' default, or of the embedded log."""
    min_insync: int | None
    compacted: bool
    retention_ms: int | None
    retention_bytes: int | None
    config: dict[str, str]
    """Settings on Kafka: those that it has, or is created with."""
    findings: list[Finding]

    @property
    def is_right(self) -> bool:
        """Whether nothing is to be done: there are notes at most."""
        return self.action == "none" and all(one.level == "note" for one in self.findings)


def plan_topics(plans: Sequence[Plan], log: StoredLog, *, change_cleanup: bool = False) -> list[PlannedTopic]:
    """What the topics of apps are, and should be. Asks only; ``apply_topics`` takes the result."""
    return _Planning(plans, log, change_cleanup=change_cleanup).entries()


def apply_topics(planned: Sequence[PlannedTopic], log: StoredLog) -> None:
    """Create what is missing, and change the settings that the plan names as safe."""
    feeds: set[str] = set()
    for one in planned:
        if one.action == "create" and set(one.roles.values()) == {"watermarks"}:
            feeds.add(one.topic)
        elif one.action == "create":
            settings = TopicSettings(one.partitions, one.compacted, one.retention_ms, one.retention_bytes)
            log.create_topic(one.topic, settings)
        if changes := {found.setting: found.wanted for found in one.findings if found.is_safe}:
            log.admin.alter(one.topic, changes)
    known = log.topics()
    followed = (one.topic for one in planned if feeds.intersection(log.admin.watermark_topics(one.topic)))
    log.admin.follow(topic for topic in followed if topic in known)


def check_topics(plan: Plan, log: StoredLog, app: str) -> None:
    """Compare the topics of an app, named as in a command, with the rules at its start. Warnings are logged.
    Raises TopicMismatchError: a deviation would lose data, or give wrong results.
    """
    options = f"--app {app} --log {log.place}"
    warnings: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in plan_topics([plan], log):
        for found in one.findings:
            if one.action != "create" and found.level == "error":
                hint = (
                    f"`tailrace topics apply {options}` changes it to {found.wanted}."
                    if found.is_safe
                    else f"To correct it: {found.fix}."
                )
                raise TopicMismatchError(str(found), topic=one.topic, hint=hint)
            if one.action != "create" and found.level == "warning":
                warnings[found.setting, found.found, str(found)].append(one.topic)
    for (setting, value, text), topics in warnings.items():
        _log.warning(
            "%s of %s. See `tailrace topics plan %s`",
            text,
            " and ".join(map(repr, topics)),
            options,
            extra={"app": plan.app, "topics": topics, "setting": setting, "value": value},
        )


class _Planning:
    def __init__(self, plans: Sequence[Plan], log: StoredLog, *, change_cleanup: bool) -> None:
        self._log, self._admin = log, log.admin
        self._new_topics = log.options.new_topics or NewTopics()
        self._change_cleanup = change_cleanup
        known = self._admin.names()
        self._needs: dict[str, dict[str, NeededTopic]] = defaultdict(dict)
        """By topic and app."""
        for plan in plans:
            for need in self._needed_by(plan, known):
                self._needs[need.name][plan.app] = need
        followed = {need.follows for needs in self._needs.values() for need in needs.values()}
        self._found = self._admin.details([*self._needs, *followed])

    def entries(self) -> list[PlannedTopic]:
        """One for each topic: the internal ones first, then what the apps declare."""

        def is_declared(name: str) -> bool:
            return not all(one.is_internal for one in self._needs[name].values())

        return [self._entry(name, self._needs[name]) for name in sorted(self._needs, key=is_declared)]

    def _needed_by(self, plan: Plan, topics: Collection[str]) -> list[NeededTopic]:
        needed = needed_topics(located(plan, self._log))
        compacted = TopicSettings(1, compacted=True)
        if redriven_of(plan.app) in topics:
            needed.append(NeededTopic(redriven_of(plan.app), "redriven", compacted))
        needed += [
            NeededTopic(feed, "watermarks", compacted, name)
            for name in followed_topics(plan)
            for feed in self._admin.watermark_topics(name)
        ]
        return needed

    def _entry(self, name: str, needs: Mapping[str, NeededTopic]) -> PlannedTopic:
        roles: dict[str, Role] = {app: need.role for app, need in needs.items()}
        found = self._found.get(name)
        if found is None:
            return self._missing(name, needs, roles)
        all_said: dict[str, Finding] = {}
        for app, need in needs.items():
            for one in self._admin.findings(need, found, self._about(app, need)):
                all_said.setdefault(one.setting, one)
        said = [self._allowed(one) for one in all_said.values()]
        refused = any(one.level != "note" and not one.is_safe for one in said)
        safe = any(one.is_safe for one in said)
        settings = found.settings
        return PlannedTopic(
            name,
            roles,
            "change" if safe else "refuse" if refused else "none",
            settings.partitions,
            found.replicas,
            found.min_insync,
            settings.compacted,
            settings.retention_ms,
            settings.retention_bytes,
            {
                one: found.config[one]
                for one in sorted(self._admin.new_config(TopicSettings(1)).keys() & found.config.keys())
            },
            said,
        )

    def _missing(self, name: str, needs: Mapping[str, NeededTopic], roles: dict[str, Role]) -> PlannedTopic:
        by_count = {need.settings.partitions: app for app, need in needs.items() if need.role != "output"}
        if not by_count:
            by_count = {need.settings.partitions: app for app, need in needs.items()}
        need = min(needs.values(), key=lambda one: one.role == "output")
        said: list[Finding] = []
        if len(by_count) > 1:
            wanted = " and ".join(f"{count} ({app})" for count, app in sorted(by_count.items()))
            why = "apps that read one topic have as many tasks as it has partitions"
            said.append(
                Finding(
                    "error",
                    "partitions",
                    wanted,
                    "one number",
                    why,
                    "declare the same partitions= in these apps",
                )
            )
        if len({need.settings.compacted for need in needs.values()}) > 1:
            why, fix = "as a topic, its deletions cannot be read", "declare it with app.table in all apps"
            said.append(Finding("error", POLICY, "that of a table and that of a topic", "one", why, fix))
        return PlannedTopic(
            name,
            roles,
            "refuse" if said else "create",
            need.settings.partitions,
            self._new_topics.replication,
            self._new_topics.min_insync,
            need.settings.compacted,
            need.settings.retention_ms,
            need.settings.retention_bytes,
            self._admin.new_config(need.settings),
            said,
        )

    def _about(self, app: str, need: NeededTopic) -> Circumstances:
        followed = self._found.get(need.follows)
        return Circumstances(app, self._is_empty, None if followed is None else followed.settings)

    def _allowed(self, one: Finding) -> Finding:
        """With --change-cleanup the policy of a topic with data is changed, too."""
        if one.setting == POLICY and one.level == "error" and self._change_cleanup:
            return msgspec.structs.replace(one, is_safe=True, fix="")
        return one

    def _is_empty(self, topic: str) -> bool:
        count = self._found[topic].settings.partitions
        return all(self._log.end_offset(topic, number) == 0 for number in range(count))


def in_short(planned: Collection[PlannedTopic]) -> str:
    """One line about a whole plan."""
    count = Counter(one.action for one in planned)
    return (
        f"{counted(len(planned), 'topic')}: {count['create']} to create, {count['change']} to change, "
        f"{count['refuse']} that differ and are not changed"
    )
