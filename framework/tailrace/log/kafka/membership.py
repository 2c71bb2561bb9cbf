"""Which tasks of an app a process owns on Kafka: those that the app's consumer group gives it.

Each process of an app is a member of the group named after the app, and subscribes to the app's tape, whose partitions are its tasks.
It reads nothing from there: inputs, changelog and tape are read by positions of their own. The group spreads the tasks over the
living members, by either protocol of Kafka (``group.protocol``), and moves only what has to move.

Two things keep a replaced owner from doing harm:

- *The metadata of the group goes with every commit.* A member that was replaced, or was stopped for too long, has an old generation,
  and the broker refuses its offsets and with them the whole transaction.
- *Before a transactional id is taken over* the member asks the group whether it is still a member (``check``). A process that is
  stopped between the two may fence the rightful owner, which then finds that it is still a member and takes over again. Nothing
  is lost or doubled, as neither has committed.

A task is given back in a callback of ``look``: it commits there, and the group moves it when the callback returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tailrace.core.errors import FencedError
from tailrace.log.interface import TopicPartition
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.failures import as_log_error, kafka_error
from tailrace.log.kafka.library import At, Consumer


class Membership:
    """A member of an app's group, until ``close``. For one thread.

    ``given`` is called with the numbers of new tasks. ``taken`` is called with those that go to others, and whether they can still
    be committed.
    """

    def __init__(
        self,
        connection: Connection,
        cluster: Cluster,
        app: str,
        tape: str,
        *,
        given: Callable[[Collection[int]], None],
        taken: Callable[[Collection[int], bool], None],
    ) -> None:
        self.owned: set[int] = set()
        """The tasks of this process."""
        self.joined = False
        """Whether the group has answered; it may have given nothing."""
        self._app = app
        self._tape = tape
        self._cluster = cluster
        self._given = given
        self._taken = taken
        self._error: BaseException | None = None
        self._consumer: Consumer = connection.consumer(app, **connection.of_members())
        self._consumer.subscribe(
            [cluster.prefix + tape],
            on_assign=self._guarded(self._on_assign),
            on_revoke=self._guarded(self._on_revoke),
            on_lost=self._guarded(self._on_lost),
        )

    def look(self) -> None:
        """Take part in the group: gives tasks back, and takes new ones. Raises what these raise."""
        try:
            message = self._consumer.poll(0)
        except Exception as error:
            raise as_log_error(kafka_error(error), "taking part in the group of the app") from error
        failure, self._error = self._error, None
        if failure is not None:
            raise failure
        if message is not None and message.error() is not None and not message.error().retriable():
            raise as_log_error(message.error(), "taking part in the group of the app", self._tape)

    def metadata(self) -> Any:
        """What goes with every commit."""
        return self._consumer.consumer_group_metadata()

    def check(self) -> None:
        """Ask the group whether this process is still a member.

        Raises:
            FencedError: It is not, or not with its present tasks.
            LogUnavailableError: The group does not answer.
        """
        if not self.owned:
            raise FencedError(
                "the group has given the tasks of this process to others", hint="Nothing is lost."
            )
        place = TopicPartition(self._tape, min(self.owned))
        try:
            # The offset means nothing: nobody reads the tape by the group's offsets.
            done = self._consumer.commit(offsets=[self._cluster.at(place, 0)], asynchronous=False)
        except Exception as error:
            raise as_log_error(kafka_error(error), "asking the group of the app") from error
        for one in done or ():
            if one.error is not None:
                raise as_log_error(one.error, "asking the group of the app")

    def close(self) -> None:
        """Leave the group. The tasks must have been given back before."""
        self._consumer.close()

    # --- called back

    def _guarded(self, call: Callable[[list[At]], None]) -> Callable[[Consumer, list[At]], None]:
        """An error in a callback is raised by ``look``: the library would lose it."""

        def called(_consumer: Consumer, places: list[At]) -> None:
            try:
                call(places)
            except BaseException as error:  # noqa: BLE001  # raised by ``look``
                self._error = self._error or error

        return called

    def _on_assign(self, places: list[At]) -> None:
        self.joined = True
        for one in places:
            one.offset = 0
        # Both protocols of a cooperative group give only what is new.
        self._consumer.incremental_assign(places)
        self._consumer.pause(places)
        numbers = {one.partition for one in places} - self.owned
        self.owned |= numbers
        self._given(numbers)

    def _on_revoke(self, places: list[At]) -> None:
        self._leave(places, may_commit=True)

    def _on_lost(self, places: list[At]) -> None:
        self._leave(places, may_commit=False)

    def _leave(self, places: list[At], *, may_commit: bool) -> None:
        numbers = {one.partition for one in places} & self.owned
        try:
            self._taken(numbers, may_commit)
        finally:
            self.owned -= numbers
            self._consumer.incremental_unassign(places)
