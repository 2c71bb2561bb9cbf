"""What failed in the service, for a rebuild in canonical order: each event takes effect at most once.

Theory. Along the tape, records that failed are skipped and redriven records are handled, as in the service.
In canonical order no tape names the failed records, so the dead letters do::

    the letter was redriven    the original is skipped, and the redriven record is handled in its own place.
                               If that is after the end of the rebuild, the service will handle it there
    it was not redriven        the record is handled in its place. A service that starts from the snapshot
                               settles the letter, so that it is not redriven (see ``dead_letters.handled``)

A letter that names operators is about these only: the others have handled the record, and handle it here.

A record that the service has refused as from the future is refused, as handling it would move the watermark. Records that no
service has read are compared with the clock of the rebuild's beginning: that is the reading that a service which begins
now would have.

Records that the app sends to itself come from the present code (see ``core.engine.delivery``), and their
letters are about records that the earlier code has sent. So redriven ones are left out (see
``canonical_unit``), and the letters are settled. A record that fails again cannot be identified by its
offset, but by its *content*: topic, key and value. Its letter stays open. If it was redriven, the rebuild is
refused, because its redriven record has no place here.

A timer has no record: every timer fires in its place, and its letter stays listed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.redriven import OPERATORS_HEADER, redrives_in
from tailrace.core.errors import FROM_THE_FUTURE, HANDLER_FAILED, BadReason, OptionError, ReplayDivergedError
from tailrace.core.records import Headers, InputRecord, Output, RawOutput
from tailrace.history.dead_letters.letters import DeadLetter, dead_letters, notes, read
from tailrace.history.reading.beginnings import Beginning
from tailrace.history.rebuilding.job import Letters
from tailrace.history.rebuilding.past import HistorySource

_FOREIGN: BadReason = "foreign-partition"

Skips = dict[tuple[int, int, int], Headers]
"""By input number and offset: a record to skip, with the headers of its dead letter."""


def letters_before(past: HistorySource, *, delivers_sends: bool) -> tuple[Letters, ...]:
    """The app's dead letters by partition; empty if there are none. ``delivers_sends``: see ``Settled``."""
    plan, log = past.plan, past.log
    if plan.dead_letters_topic not in log.topics():
        return ()
    redriven: defaultdict[int, set[tuple[str, int, str]]] = defaultdict(set)
    failed: defaultdict[int, set[tuple[str, int, str]]] = defaultdict(set)
    sent: defaultdict[int, set[tuple[str, int, bytes]]] = defaultdict(set)
    redriven_sent: defaultdict[int, set[bytes]] = defaultdict(set)
    inputs, own = {one.name for one in plan.inputs}, own_inputs(plan) if delivers_sends else {}
    done = {id_ for id_, one in notes(log, plan.app).items() if not one.snapshot}
    future: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)
    for letter in dead_letters(log, plan.app):
        name, number, offset = letter.topic, letter.origin_partition, letter.origin_offset
        if name not in inputs or number is None or offset is None:
            continue
        if letter.reason == FROM_THE_FUTURE and name not in own:
            future[number].add((name, offset))
        elif name in own:
            if letter.id not in done:
                sent[number].add((name, offset, _content(letter)))
            elif (
                letter.reason != _FOREIGN
            ):  # the redriven record of those is in another partition, and handled
                redriven_sent[number].add(_content(letter))
        elif letter.id not in done:
            _check_own(letter, plan)
            failed[number].add((name, offset, letter.operators or ""))
        else:
            redriven[number].add((name, offset, letter.operators or ""))
            # It may itself have been redriven for an app whose history this one continues, and the original
            # failed there.
            for one in redrives_in(letter.record.headers):
                if one.origin is not None:
                    redriven[one.origin[0]].add((name, one.origin[1], letter.operators or ""))
    if not (redriven or failed or sent or redriven_sent or future):
        return ()
    return tuple(
        Letters(
            tuple(sorted(redriven[n])),
            tuple(sorted(one for one in failed[n] - redriven[n] if (*one[:2], "") not in redriven[n])),
            tuple(sorted(sent[n])),
            tuple(sorted(redriven_sent[n] - {content for *_, content in sent[n]})),
            tuple(sorted(future[n])),
        )
        for n in range(plan.partitions)
    )


def _content(letter: DeadLetter) -> bytes:
    """A digest of the topic, key and value of a failed record."""
    record = letter.record
    return blake2b(msgspec.msgpack.encode((letter.topic, record.key, record.value)), digest_size=16).digest()


def _check_own(letter: DeadLetter, plan: Plan) -> None:
    """Refuse the letter of a record redriven for another app: canonical order handles the original."""
    found = redrives_in(letter.record.headers)
    if found and found[-1].topic != plan.dead_letters_topic and letter.topic not in own_inputs(plan):
        raise OptionError(
            f"the dead letter {letter.id} of the app {plan.app!r} is a record that was redriven for an app "
            "whose history it continues: in canonical order its original would be handled, and the letter "
            "could be redriven as well",
            hint=f"Redrive it first: tailrace dead-letters redrive {plan.app} --id {letter.id}",
        )


def skips_of(plan: Plan, partition: int, letters: Letters) -> Skips:
    """The records that a task must skip, because their redriven records are handled; and those to refuse."""
    numbers = {one.name: one.index for one in plan.inputs}
    operators = {one.name: one.index for one in plan.operators}
    found: Skips = {}

    def headers(reason: str, error: str, name: str, offset: int) -> Headers:
        fields = {"reason": reason, "error": error, "topic": name, "partition": partition, "offset": offset}
        return tuple((f"tailrace-{field}", str(value).encode()) for field, value in fields.items())

    for name, offset, failed in letters.redriven:
        redriven = "It failed when it ran first, and was redriven since."
        found_headers = headers(HANDLER_FAILED, redriven, name, offset)
        if failed:
            units = [operators[one] for one in failed.split(",") if one in operators]
            found_headers = (*found_headers, (OPERATORS_HEADER, failed.encode()))
        else:
            units = [tape.ALL, *operators.values()]
        found.update(((numbers[name], offset, unit), found_headers) for unit in units)
    for name, offset in letters.from_the_future:
        ahead = "Its event time was too far ahead of the clock when it was read first."
        found[numbers[name], offset, tape.ALL] = headers(FROM_THE_FUTURE, ahead, name, offset)
    return found


class FailedAgain:
    """The records of one task that fail in this rebuild, by the dead letters that it emits."""

    def __init__(self, plan: Plan, letters: Letters) -> None:
        self._topic, self._letters = plan.dead_letters_topic, letters
        self._records: set[tuple[str | None, int | None, str]] = set()
        self._contents: set[bytes] = set()

    def look(self, outputs: Iterable[Output] | Iterable[RawOutput]) -> None:
        """Add the dead letters among the outputs.

        Raises:
            ReplayDivergedError: A record that the app sends to itself fails, and was redriven.
        """
        if not (self._letters.failed or self._letters.sent or self._letters.redriven_sent):
            return
        for topic, key, value, time_ms, headers in outputs:
            if topic == self._topic:
                letter = read(0, InputRecord(0, time_ms, key, value, headers))
                self._records.add((letter.topic, letter.origin_offset, letter.operators or ""))
                self._contents.add(content := _content(letter))
                if content in self._letters.redriven_sent:
                    raise ReplayDivergedError(
                        f"a record that the app sends to itself in {letter.topic!r} fails, as before, and it "
                        f"was redriven then: it would be lost here ({letter.error})",
                        hint="Correct the code so that it does not fail, or rebuild along the tape (--order "
                        "tape).",
                    )

    def handled(self, begun: Beginning, cut: bytes) -> dict[str, list[int]]:
        """The failed records that are handled at a cut of a task, by input: those that its beginning has, and
        those that have not failed again since. All outputs must have been looked at.
        """
        before = {} if begun.decoded is None else begun.decoded.positions
        after = tape.decode_cut(cut).positions
        failed = {one for one in self._letters.failed if one[1] < after.get(one[0], 0)}
        done = {
            one[:2] for one in failed if not any(_concern_one_unit(one, other) for other in self._records)
        }
        sent = {
            (name, offset) for name, offset, content in self._letters.sent if content not in self._contents
        }
        since = {one for one in done | sent if one[1] >= before.get(one[0], 0)}
        return by_input(begun.handled | since)


def _concern_one_unit(one: tuple[str, int, str], other: tuple[str | None, int | None, str]) -> bool:
    """Whether two letters are of one record and of an operator in common."""
    (*place, operators), (*other_place, others) = one, other
    shared = not operators or not others or {*operators.split(",")} & {*others.split(",")}
    return place == other_place and bool(shared)


def by_input(records: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The offsets of records by input, ascending."""
    found: dict[str, list[int]] = {}
    for name, offset in sorted(records):
        found.setdefault(name, []).append(offset)
    return found
