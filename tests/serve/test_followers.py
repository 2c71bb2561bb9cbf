"""A follower, step by step: no answer before all is applied that was committed, and none from half a commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.schema import encode_schemas
from tailrace.core.errors import IncompatibleStateError, LogUnavailableError
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.standbys import Standby
from tailrace.serve.answers import Answer, Answering, Questions
from tailrace.serve.followers import Followers
from tailrace.serve.unanswered import Unanswered
from tailrace.state import MemoryStore
from tests.runtime.processes import wait_until
from tests.serve.depot import DAY, Arrival, app, arrivals
from tests.serve.stocked import append, run_on, stocked

MANY = 4_000
"""Keys of one commit: their rows are read in several steps."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return stocked(tmp_path)


@pytest.fixture
def opened(log: Path) -> Iterator[EmbeddedLog]:
    opened = EmbeddedLog(log, create=False)
    yield opened
    opened.close()


class By:
    """Followers of all partitions, and questions to them."""

    def __init__(self, opened: EmbeddedLog) -> None:
        self.questions = Questions(app.plan())
        self.followers = Followers(app.plan(), opened, [0, 1], lambda *_: MemoryStore())

    def step(self) -> None:
        for one in self.followers.all:
            one.step()

    def ready(self) -> bool:
        self.step()
        return all(one.offset is not None for one in self.followers.reports())

    def ask(self, key: str) -> Answer:
        return self.followers.answer(self.questions.question("Depot", key, "count", {}))

    def knows(self, key: str) -> bool:
        try:
            self.ask(key)
        except Unanswered as error:
            if error.status not in (404, 503):
                raise
            return False
        return True


def many(what: str) -> list[tuple[object, object]]:
    return [(arrivals, Arrival(f"{what} {number:04}", DAY, what)) for number in range(MANY)]


def test_while_it_restores_every_question_gets_503_and_how_far_it_is(
    log: Path, tmp_path: Path, opened: EmbeddedLog
) -> None:
    append(log, many("crate"))
    run_on(log, tmp_path / "state")
    by = By(opened)
    reasons: set[str] = set()

    def is_answered() -> bool:
        by.step()
        try:
            return bool(by.ask("north").value)
        except Unanswered as error:
            reasons.add(f"{error.status}: {error}")
            return False

    wait_until(is_answered, "it is answered")
    assert all(one.startswith("503") for one in reasons)
    assert any("records are applied" in one and "offsets are left" in one for one in reasons), reasons
    by.followers.close()


@pytest.mark.parametrize("checked_again", [False, True])
def test_a_commit_is_answered_whole_or_not_at_all(
    log: Path, tmp_path: Path, opened: EmbeddedLog, checked_again: bool
) -> None:
    """Its first and last rows of a partition come in different steps. The copy may also be filled a second time."""
    by = By(opened)
    wait_until(by.ready, "it follows")
    append(log, many("crate"))
    run_on(log, tmp_path / "state")
    for each in by.followers.all if checked_again else ():
        assert isinstance(each._standby, Standby)
        each._standby._check_again()
    keys = [f"crate {number:04}" for number in range(MANY)]
    of_partition: dict[int, list[str]] = {0: [], 1: []}
    for key in keys:
        of_partition[by.questions.question("Depot", key, "", {}).partition].append(key)
    seen: list[bool] = []

    def is_there() -> bool:
        for number, some in of_partition.items():
            by.followers.all[number].step()
            known = {by.knows(key) for key in (some[0], some[len(some) // 2], some[-1])}
            assert len(known) == 1, "half a commit"
            seen.append(known.pop())
        return all(seen[-2:])

    wait_until(is_there, "the commit is answered")
    assert False in seen, "it was not there before"
    by.followers.close()


def test_state_that_another_version_has_written_meanwhile_is_refused(opened: EmbeddedLog) -> None:
    other = tr.App("depot")

    class Depot(tr.Actor):
        count: str = ""

        @tr.process(other.topic("arrivals", Arrival, key="depot", event_time="at"))
        def arrived(self, event: Arrival, ctx: tr.Context[str]) -> None:
            self.count = event.what

    other.actor(Depot)
    is_refused(opened, encode_schemas({one.name: one.schema for one in other.plan().actors}), "declaration")


@pytest.mark.parametrize("field", ["count", "by_what", "last.weight"])
def test_state_that_another_version_stores_under_another_name_is_refused(
    opened: EmbeddedLog, field: str
) -> None:
    """The version is made from the schema of the stored one: the field is among the past ones, another is there."""
    (mine,) = [one.schema for one in app.plan().actors if one.name == "Depot"]
    is_refused(opened, encode_schemas({"Depot": renamed(mine, field)}), f"has no field '{field}'")


def renamed(schema: Any, field: str) -> Any:
    """The schema that a version stores in which the field has another name."""
    first, _, rest = field.partition(".")
    (before,) = [one for one in schema.fields if one.name == first]
    if rest:
        of = tuple(renamed(one, rest) if one.fields else one for one in before.type.members)
        after = replace(before, type=replace(before.type, of=of))
        return replace(schema, fields=tuple(after if one is before else one for one in schema.fields))
    fields = tuple(replace(one, name="other") if one is before else one for one in schema.fields)
    return replace(schema, fields=fields, past=(before,))


def is_refused(opened: EmbeddedLog, schemas: bytes, why: str) -> None:
    found = AppHistory(app.plan(), opened).committed(0, with_rows=True)
    assert found.cut is not None
    assert found.rows is not None
    answering = Answering(app.plan(), 0, found.rows)
    question = Questions(app.plan()).question("Depot", "north", "count", {})
    assert answering.answer(question, found.cut, 0, 0, 0).value == 2
    found.rows.write({rows.SCHEMA_ROW: schemas}, b"")
    for _ in range(2):
        with pytest.raises(IncompatibleStateError, match=why):
            answering.answer(question, found.cut, 0, 0, 0)


def test_a_log_that_does_not_answer_makes_the_answers_older_and_the_report_says_why(
    opened: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    by = By(opened)
    wait_until(by.ready, "it follows")
    reader, _ = by.followers._readers

    def silent(*_: object) -> int:
        raise LogUnavailableError("nobody is there")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "behind", silent)

        def is_older() -> bool:
            by.step()
            return by.ask("north").age_ms > 50

        wait_until(is_older, "the answer is older")
        assert all("nobody is there" in one.trouble for one in by.followers.reports())
    by.step()
    assert by.ask("north").age_ms < 50
    assert not any(one.trouble for one in by.followers.reports())
    by.followers.close()
