"""A state is taken up only by a log that has it: what each caller does with each of the four answers.

A snapshot and the stores of its moment are held against a log that has them, has lost its end before them, has grown past that again with
other amounts (so that all offsets and counts are equal), or has deleted the tape.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.errors import OtherHistoryError, SnapshotMismatchError
from tailrace.core.records import InputRecord, RecordMark
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.moving.moving import move_apps
from tailrace.history.provenance.judging import (
    DOES,
    Ahead,
    Judgement,
    Other,
    Same,
    Unknown,
    Within,
    check_base,
    does,
    judge,
    judge_read,
    taped,
)
from tailrace.history.provenance.topics import check_same_topics, resumed
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.beginnings import Beginning
from tailrace.history.reading.changelog import last_cut
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.history.snapshots.start_from_snapshot import start_from
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.same_topics import check_same, replaced
from tailrace.runtime.preparing import prepare_log
from tailrace.state import MemoryStore
from tailrace.state.contents import Contents
from tailrace.state.provenance import Abandoned, Provenance, ReadTopic, provenance_of
from tailrace.state.snapshots import Snapshot
from tailrace.state.store_cut import decode_store_cut
from tailrace.testing import MemoryLog
from tests.history.rebuilding.lived import request
from tests.runtime.served import Tick
from tests.runtime.state_world import KEYS, World
from tests.runtime.tallies import check_counts, ticks

ANSWERS: tuple[type[Judgement], ...] = (Same, Ahead, Other, Unknown)
WHY: dict[type[Judgement], str] = {
    Ahead: "and the last one in this log is",
    Other: "of this log has the identity",
    Unknown: "whose tape this log has deleted",
}
ROUNDS = 5
_ONE = TopicSettings(1)


def tell(world: World, first: int, *, amount: int) -> None:
    """Ticks of an amount come."""
    for one in ticks(KEYS, ROUNDS, first):
        tick = msgspec.structs.replace(msgspec.json.decode(one.value or b"", type=Tick), amount=amount)
        world.log.append_all([one._replace(value=msgspec.json.encode(tick))])


def live(world: World, first: int, *, amount: int) -> None:
    tell(world, first, amount=amount)
    world.run()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    live(made, 0, amount=1)
    yield made
    made.log.close()


class Judged(World):
    """A snapshot with what has become of its log. All tasks have the same answer."""

    def __init__(self, folder: Path, answer: type[Judgement]) -> None:
        super().__init__(folder)
        log, before = folder / "log", folder / "before"
        live(self, 0, amount=1)
        self.log.close()
        shutil.copytree(log, before)
        self.log = EmbeddedLog(log)
        live(self, ROUNDS, amount=2)
        self.made = self.take()
        self.stores.clear()
        if answer in (Ahead, Other):
            self.log.close()
            shutil.rmtree(log)
            before.rename(log)
            self.log = EmbeddedLog(log)
        if answer is not Ahead:
            live(self, ROUNDS if answer is Other else 2 * ROUNDS, amount=3)
        if answer is Unknown:
            live(self, 3 * ROUNDS, amount=3)  # the commit that follows is deleted, too
            for number in range(self.plan.partitions):
                self.log.delete_before("tally.tape", number, self.log.end_offset("tally.tape", number) - 1)
        self.stores.clear()

    @property
    def snapshot(self) -> Snapshot:
        return self.snapshots().open(self.made.id)

    def then(self, number: int) -> tape.Cut:
        return tape.decode_cut(self.made.task(number).cut)

    def end(self, number: int) -> bytes:
        data = AppHistory(self.plan, self.log).committed(number).cut
        assert data is not None
        return data

    def store(self, number: int) -> MemoryStore:
        """As it was at the moment of the snapshot."""
        entry, store = self.made.task(number), MemoryStore()
        Beginning(number, self.then(number).lineage, self.snapshot, entry.cut).load(store)
        assert store.cut is not None
        cut, position = decode_store_cut(store.cut), entry.changelog_position or 0
        there = msgspec.structs.replace(cut, changelog_position=position, at_end_ms=self.made.created_ms)
        store.write({}, there.encode())
        return store


@pytest.fixture(params=ANSWERS, ids=lambda one: one.__name__)
def judged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Judged, type[Judgement]]]:
    made = Judged(tmp_path, request.param)
    yield made, request.param
    made.log.close()


def test_each_answer_is_given_and_each_caller_does_what_it_has_to(
    judged: tuple[Judged, type[Judgement]], caplog: pytest.LogCaptureFixture
) -> None:
    world, answer = judged
    plan, log, number = world.plan, world.log, 0
    for each in range(plan.partitions):
        assert type(judge(plan, log, each, world.then(each))) is answer
    is_lost = answer in (Ahead, Other)
    # A rebuild goes by what is on the tape, if anything tells.
    for along_tape in (True, False):
        with ExitStack() as raised:
            if is_lost:
                raised.enter_context(
                    pytest.raises(OtherHistoryError, match=r"with the identity|after its last commit")
                )
            check_base(plan, log, world.snapshot, number, world.end(number), taped=along_tape)
        # So does a start, whose state is that of the log.
        with ExitStack() as raised:
            if is_lost:
                raised.enter_context(pytest.raises(SnapshotMismatchError, match="with the identity"))
            assert "nothing to do" in start_from(plan, number, log, world.start(world.made.id), 1)
    why = WHY.get(answer, "stands after a commit")
    # A snapshot does not build on it.
    assert world.take(incremental=True).parent == (world.made.id if answer is Same else None)
    # A store is emptied, and restored from the log.
    world.stores = {("tally", each): world.store(each) for each in range(plan.partitions)}
    with caplog.at_level(logging.WARNING):
        world.run()
    lost = 0 if answer is Same else plan.partitions
    assert caplog.text.count("The state is emptied and restored") == caplog.text.count(why) == lost
    folded = AppHistory(plan, log).committed(number, with_rows=True).rows
    assert folded is not None
    assert world.rows()[number] == {row: one for row, one in folded.rows() if row[:1] == rows.STATE}
    # The log decides: nothing of it is lost or repeated.
    rounds: int = dict[type[Judgement], int]({Same: 3, Ahead: 1, Other: 2, Unknown: 4})[answer]
    live(world, rounds * ROUNDS, amount=1)
    check_counts(log, KEYS, (rounds + 1) * ROUNDS)
    if answer is not Unknown:
        options = ReplayOptions(compare=True, any_environment=True)
        assert not replay(plan, log, options).differences.count
    if is_lost:
        with pytest.raises(SnapshotMismatchError, match="does not stand where"):
            world.run(start=world.start(world.made.id, replace=True))


def test_a_rebuild_from_a_lost_end_is_refused_and_a_comparison_shows_it(tmp_path: Path) -> None:
    world = Judged(tmp_path, Other)
    base = {"base": str(world.folder / "snapshots"), "base_id": world.made.id}
    for order in ("tape", "stages"):
        with pytest.raises(OtherHistoryError, match="with the identity") as raised:
            rebuild(request(world.folder, order=order, **base), LocalEngine(1))
        assert raised.value.why == "commit"

    def of_lost_end(number: int) -> list[LiveState]:
        store = MemoryStore()
        store.write(dict(world.snapshot.rows(number)), b"")
        return [LiveState("the state folder", store, world.made.task(number).cut, indexed=False)]

    options = ReplayOptions(compare=True, any_environment=True)
    differences = replay(world.plan, world.log, options, live=of_lost_end).differences
    assert differences.count == world.plan.partitions
    assert all("with the identity" in one.where for one in differences.shown)
    world.log.close()


def test_nothing_but_what_the_log_has_is_taken_up_where_the_log_can_restore_it() -> None:
    for use, row in DOES.items():
        assert does(use, Same("")) == row[0] == "take"
        assert does(use, Other("")) == row[2] != "take"
        assert does(use, Within("")) == does(use, Unknown("")) == row[3]
        if row[1] != "refuse" and row[1] != "report":
            assert "take" not in row[1:]


def test_a_commit_is_found_by_its_number_and_known_by_the_one_that_follows_it(world: World) -> None:
    for number in range(world.plan.partitions):
        cut = world.cut(number)

        def answer(cut: tape.Cut, number: int = number) -> type:
            return type(judge(world.plan, world.log, number, cut))

        found = [taped(world.plan, world.log, number, at) for at in range(cut.tape)]
        assert [one.number if one else None for one in found] == [*range(cut.tape)]
        assert taped(world.plan, world.log, number, cut.tape) is None
        assert answer(cut) is Same
        assert answer(msgspec.structs.replace(cut, tape=cut.tape + 1)) is Ahead
        first = found[0]
        assert first is not None
        begun = msgspec.structs.replace(cut, tape=1, identity=first.identity)
        within = msgspec.structs.replace(cut, tape=1, identity=tape.identity_within(b"", 0))
        assert (answer(begun), answer(within)) == (Same, Within)
        world.log.delete_before("tally.tape", number, 1)
        assert answer(begun) is Same  # the next one follows it
        assert answer(msgspec.structs.replace(cut, tape=1)) is Other
        world.log.delete_before("tally.tape", number, 2)
        assert answer(begun) is Unknown


def test_the_last_record_read_is_compared_unless_it_was_deleted_or_compacted() -> None:
    log = MemoryLog()
    for topic, compacted in (("kept", False), ("compacted", True)):
        log.create_topic(topic, _ONE._replace(compacted=compacted))
        for at in range(5):
            log.append(topic, b"k", b"%d" % at, at)
    mark = RecordMark.of(log.read("kept")[3])
    other = RecordMark(3, "another")

    def answer(name: str, read: RecordMark | None) -> type[Judgement]:
        return type(judge_read(log, name, 0, read))

    assert answer("kept", mark) is Same
    assert answer("kept", other) is Other
    assert answer("kept", RecordMark(5, "another")) is Ahead
    assert answer("kept", None) is Unknown
    log.compact("compacted")
    assert answer("compacted", other) is Unknown
    log.delete_before("kept", 0, 4)
    assert answer("kept", other) is Unknown


@pytest.mark.parametrize(("amount", "fits"), [(1, True), (4, False)])
def test_a_snapshot_does_not_begin_an_app_in_a_log_that_has_other_records(
    world: World, tmp_path: Path, amount: int, fits: bool
) -> None:
    """There is no commit to compare, so the last record of each input is."""
    made, other = world.take(), World(tmp_path / "other")
    tell(other, 0, amount=amount)
    if fits:
        other.run(start=world.start())
        assert [other.cut(number).totals for number in range(4)] == [
            world.cut(number).totals for number in range(4)
        ]
    else:
        with pytest.raises(OtherHistoryError, match="in this log it has another record at offset"):
            other.run(start=world.start())
        assert AppHistory(other.plan, other.log).committed(0).cut is None
        other.run()
        base = {"base": str(world.folder / "snapshots"), "base_id": made.id}
        with pytest.raises(OtherHistoryError, match="in this log it has another record at offset"):
            rebuild(request(other.folder, order="stages", **base), LocalEngine(1))
    other.log.close()


def test_marks_and_rows_go_with_a_state_that_begins_with_a_snapshot_or_moves(
    world: World, tmp_path: Path
) -> None:
    world.take()
    copy = world.app.renamed("copy").plan()
    prepare_log(world.log, copy, create_declared=True)
    start_from(copy, 0, world.log, world.start(), 1)

    def noted(log: EmbeddedLog, name: str) -> tuple[Mapping[str, RecordMark], Contents | None]:
        found = provenance_of(last_cut(log, TopicPartition(f"{name}.changelog", 0)))
        return found.read, found.rows

    wanted = noted(world.log, "tally")
    assert all(wanted)
    assert noted(world.log, "copy") == wanted
    with closing(EmbeddedLog(tmp_path / "moved")) as other:
        move_apps([world.plan], world.log, other)
        assert noted(other, "tally") == wanted


# --- topics


class WithIds(MemoryLog):
    """A log that gives its topics ids."""

    ids: Mapping[str, str] = {}

    def topic_ids(self, topics: Iterable[str], /) -> Mapping[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}


IDS = {"ticks": "log/first", "tally.tape": "log/tape"}


def test_a_topic_is_another_one_if_it_has_another_id_of_the_same_log() -> None:
    assert replaced(IDS, IDS) == replaced(IDS, {}) == replaced({}, IDS) == []
    assert replaced({"ticks": ""}, IDS) == replaced(IDS, {"ticks": "another/first"}) == []
    log = WithIds()
    log.ids = IDS | {"ticks": "log/second"}
    assert replaced(IDS, log.ids) == ["ticks"]
    with pytest.raises(OtherHistoryError, match="deleted and created again") as raised:
        check_same(log, IDS)
    assert (raised.value.topic, raised.value.why) == ("ticks", "topic")
    with pytest.raises(OtherHistoryError, match="since it was read"):
        check_same_topics(log, msgspec.json.encode(IDS))
    check_same_topics(log, b"")


def test_a_position_is_continued_behind_offsets_without_a_record_in_the_same_topic_only(world: World) -> None:
    log = WithIds()
    cut = msgspec.structs.replace(world.cut(0), positions={"ticks": 5})
    topics = {name: ReadTopic(id_, 7 if name == "ticks" else 0) for name, id_ in IDS.items()}

    def at(ids: Mapping[str, str], said: Provenance, position: int = 5) -> int | None:
        log.ids = ids
        found = msgspec.structs.replace(cut, positions={"ticks": position} if said.topics else {})
        return resumed(world.plan, log, InputRecord(0, 0, b"", tape.encode(found), said.headers)).get("ticks")

    said = Provenance(topics)
    assert [at(IDS, said), at(IDS, said, 9)] == [7, 9]  # 5 and 6 hold no record
    assert at({**IDS, "ticks": "another/second"}, said) == 5
    assert at({}, said) == 5  # the topic is gone
    assert at(IDS, Provenance(abandoned={"ticks": Abandoned(4, IDS["ticks"])})) == 4
    for gone in IDS:
        with pytest.raises(OtherHistoryError, match="since the app 'tally' has read it") as raised:
            at({**IDS, gone: "log/second"}, said)
        assert raised.value.topic == gone
    with pytest.raises(OtherHistoryError, match="since the app 'tally' has read it"):
        at({**IDS, "ticks": "log/second"}, Provenance(abandoned={"ticks": Abandoned(4, IDS["ticks"])}))
