"""The names of what belongs to an app: its internal topics, its consumer groups, and its transactional ids.

``<app>.<topic>.by-key`` is the topic behind an input that is declared with ``repartition=True``, and ``<app>.<topic>.broadcast``
that behind one with ``broadcast=True``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from tailrace.core.records import CHANNEL

BY_KEY: Final = ".by-key"
BROADCAST: Final = ".broadcast"
FORWARDED: Final = (BY_KEY, BROADCAST)
"""How the names of topics end that an app forwards records to."""
CHANGELOG: Final = ".changelog"
TAPE: Final = ".tape"
_CHANGELOG: Final = re.compile(r"(.+)\.changelog(?:\.\d+)?")
_KEPT: Final = re.compile(r"(?:changelog(?:\.\d+)?|tape)$")
_PASSED: Final = (*FORWARDED, ".dead-letters", ".inbox")


def changelog_of(app: str, generation: int = 0) -> str:
    """The topic with the state. Each upgrade of an app begins another generation of it."""
    return f"{app}{CHANGELOG}.{generation}" if generation else f"{app}{CHANGELOG}"


def is_changelog_of(app: str, topic: str) -> bool:
    """Whether a topic is a changelog of an app, of any generation."""
    found = _CHANGELOG.fullmatch(topic)
    return found is not None and found[1] == app


def is_kept(topic: str) -> bool:
    """Whether a task writes a topic for itself: a changelog, which Faust has too, or a tape."""
    return _KEPT.search(topic) is not None


def is_passed_on(topic: str) -> bool:
    """Whether a topic of an app holds what came from its inputs: copies of records, dead letters, messages."""
    return topic.endswith(_PASSED)


def _own(ending: str) -> Callable[[str], str]:
    """The name of a topic of an app, by the name of the app."""
    return lambda app: f"{app}{ending}"


tape_of: Final = _own(TAPE)
"""The topic with the causes of all commits; its partitions are the tasks."""
inbox_of: Final = _own(".inbox")
"""The topic with the messages between actors, and the redriven records."""
dead_letters_of: Final = _own(".dead-letters")
"""The topic with the events that could not be handled."""
redriven_of: Final = _own(".redriven")
"""The topic that notes which dead letters were redriven."""
moves_of: Final = _own(".moves")
"""The topic that notes on which log the app lives."""
upgrades_of: Final = _own(".upgrades")
"""The topic that notes which version of the app may run."""
last_failure_of: Final = _own(".last-failure")
"""The topic that notes why a process of the app has ended last."""


def by_key_of(app: str, topic: str) -> str:
    """The topic behind an input that is keyed again."""
    return f"{app}.{topic}{BY_KEY}"


def broadcast_of(app: str, topic: str) -> str:
    """The topic with copies of the records of a broadcast topic for every task."""
    return f"{app}.{topic}{BROADCAST}"


def is_own(name: str, app: str) -> bool:
    """Whether an input is an internal topic of the app. Other topics may begin with its name as well."""
    if name == inbox_of(app) or name.startswith(f"{inbox_of(app)}{CHANNEL}"):
        return True
    return name.startswith(f"{app}.") and name.endswith(FORWARDED)


def own_topics_of(app: str) -> set[str]:
    """The topics that an app alone may write, but for those behind inputs that are keyed again, and later changelogs."""
    names = (changelog_of, tape_of, inbox_of, dead_letters_of, redriven_of, last_failure_of)
    return {of(app) for of in names}


def apps_in(topics: Iterable[str]) -> list[str]:
    """The names of the apps that have run on a log with these topics."""
    return [name.removesuffix(TAPE) for name in topics if name.endswith(TAPE)]


def begun_group(app: str) -> str:
    """The group whose offsets say where an app began to read its inputs."""
    return f"{app}#begun"


def transactional_id(app: str, partition: int) -> str:
    """The id under which the task of a partition commits and publishes."""
    return f"{app}-{partition}"


def redrive_transactional_id(app: str) -> str:
    """The id under which dead letters of an app are redriven."""
    return f"{app}.redrive"


def process_transactional_id(app: str, process: str) -> str:
    """The id under which a process commits all of its tasks, where they share a transaction."""
    return f"{app}-process-{process}"


def task_of(transactional_id: str) -> tuple[str, int] | None:
    """The app and the partition in the transactional id of a task; None if it is not that of a task."""
    app, _, number = transactional_id.rpartition("-")
    return (app, int(number)) if app and number.isdecimal() else None
