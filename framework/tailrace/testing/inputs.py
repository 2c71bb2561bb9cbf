"""The inputs of the services under test: lookup by topic, the allowed signals, and events as records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import TailraceError, UsageError
from tailrace.core.records import Output
from tailrace.testing.service import Service


class ServiceInput(NamedTuple):
    """An input of one of the services. ``written_by`` names another of the apps that writes it."""

    service: Service
    plan: InputPlan
    written_by: str | None

    @property
    def from_outside(self) -> bool:
        """Whether it has a watermark that does not follow what the apps under test write."""
        return bool(self.plan.moves) and not self.follows

    @property
    def follows(self) -> bool:
        """Whether one of the apps under test writes it."""
        return self.plan.own or self.written_by is not None


class Inputs:
    """The inputs of some services. ``ended`` once nothing may be sent to them any more."""

    def __init__(self, services: Sequence[Service]) -> None:
        self.ended = False
        self._services = services
        writers = [(one.plan.app, written_topics(one.plan)) for one in services]
        self._inputs = [
            ServiceInput(
                service,
                plan,
                next((app for app, to in writers if app != service.plan.app and plan.name in to), None),
            )
            for service in services
            for plan in service.plan.inputs
        ]

    def of(self, topic: object) -> list[ServiceInput]:
        """Those that read a topic. Raises UsageError if there is none, or all have ended."""
        if not isinstance(topic, Topic):
            raise UsageError(
                f"{topic!r} is not a topic", hint="Give a topic of the app, as app.topic returned it."
            )
        if not any(one.plan.topics.get(topic.name) is topic for one in self._services):
            names = {name for one in self._services for name in one.plan.outputs}
            raise UsageError(
                f"the topic {topic.name!r} belongs to the app {topic.app!r}, not to {self._apps}",
                hint=f"Its topics are {', '.join(sorted(names)) or 'none'}.",
            )
        found = [one for one in self._inputs if one.plan.name == topic.name]
        if not found:
            raise UsageError(
                f"no handler of {self._apps} takes the topic {topic.name!r}",
                hint="Its inputs are "
                f"{', '.join(sorted({one.plan.name for one in self._inputs})) or 'none'}.",
            )
        if self.ended:
            raise UsageError(f"the input {topic.name!r} has ended", hint="Send before end_of_input.")
        return found

    def from_outside(self, topic: Topic[Any, Any]) -> list[ServiceInput]:
        """The readers of a topic whose watermark comes from outside. Raises UsageError if there is none."""
        inputs = self.of(topic)
        found = [one for one in inputs if one.from_outside]
        if found:
            return found
        writer = next((one.written_by or one.service.plan.app for one in inputs if one.follows), None)
        if writer is not None:
            raise UsageError(
                f"the watermark of {topic.name!r} follows what the app {writer!r} writes to it",
                hint="Raise the watermarks of the inputs that come from outside, or give no topic: then all "
                "of them rise.",
            )
        raise UsageError(
            f"the input {topic.name!r} has no watermark",
            hint="It is declared with watermark=False, or feeds its own writers, so it holds no watermark "
            "back.",
        )

    def all_from_outside(self) -> list[ServiceInput]:
        """All that have a watermark that comes from outside. Raises UsageError if there is none."""
        found = [one for one in self._inputs if one.from_outside]
        if not found:
            raise UsageError(
                f"no input of {self._apps} has a watermark that comes from outside",
                hint="Declare one without watermark=False.",
            )
        return found

    def records(self, topic: Topic[Any, Any], events: Iterable[Any], at_ms: int) -> list[Output]:
        """Events as records of a topic. Raises UsageError for one that is not of its type, and as ``of``."""
        self.of(topic)
        name, encode, encode_key, types = topic.name, topic.encode, topic.encode_key, topic.types
        records: list[Output] = []
        for event in events:
            if type(event) not in types:
                raise UsageError(
                    f"{type(event).__name__} was sent to {name!r}, which holds {topic.type_name}",
                    hint="Send events of the declared type, or bytes by send_raw.",
                )
            try:
                key = encode_key(event)
            except (TailraceError, AttributeError, TypeError, ValueError):
                key = None  # as from a producer that sends it all the same
            records.append(Output(name, key, encode(event), at_ms))
        return records

    @property
    def _apps(self) -> str:
        names = ", ".join(repr(one.plan.app) for one in self._services)
        return f"the app {names}" if len(self._services) == 1 else f"the apps {names}"


def written_topics(plan: Plan) -> frozenset[str]:
    """The topics that an app's handlers may write, or its late events go to."""
    emitted = {edge.name for one in plan.operators for edge in one.emits if not edge.is_stream}
    return frozenset(emitted | {one.late_topic.name for one in plan.inputs if one.late_topic is not None})
