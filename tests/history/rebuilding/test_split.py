"""A partition dealt to several tasks by key comes to the same bytes as in one piece: rows, cut, and outputs
in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.engine import tape
from tailrace.core.engine.key_split import first_pass
from tailrace.core.engine.key_split.chunks import Overview
from tailrace.core.engine.key_split.shard import check
from tailrace.core.engine.replay import Limits
from tailrace.core.engine.tape import Totals
from tailrace.core.errors import CorruptStateError, UnsplittableError
from tailrace.core.records import Output
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter
from tailrace.history.rebuilding.splitting import split_units
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots.arrow import parquet
from tests.history.rebuilding import lived, referring, two_inputs
from tests.history.rebuilding.lived import TALLY, done, live, rebuilt

REFERRING = "tests.history.rebuilding.referring:app"
LENIENT = "tests.history.rebuilding.referring:lenient"


@pytest.fixture(scope="module")
def tally(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tally")
    for first in range(4):
        lived.serve_tallies(folder, 40, 1, first_round=first)
    return folder


@pytest.mark.parametrize(
    ("shards", "processes", "store"), [(2, 1, "rocks"), (3, 2, "memory"), (7, 2, "rocks")]
)
def test_split_or_not_the_snapshot_is_the_same(tally: Path, shards: int, processes: int, store: str) -> None:
    report, snapshot = done(tally, split=shards, processes=processes, store=store)
    assert rebuilt(snapshot) == live(tally, find_app(TALLY).plan())
    assert report.notes == []
    assert report.events == report.replayed == 320
    assert report.phases.shuffle > 0


@pytest.fixture
def tills(tmp_path: Path) -> tuple[Path, str, list[Output]]:
    """An ordered actor with two inputs, one of which came far ahead; it has lived twice."""
    app, records = two_inputs.made(refunds=True, order="event-time"), list[Output]()
    for minutes in (range(10), range(10, 20)):
        some = [*two_inputs.moves("refunds", minutes, 2), *two_inputs.moves("paid", minutes, 1)]
        lived.append(tmp_path, some, {"paid": 2, "refunds": 2})
        lived.live_on(tmp_path, app)
        records += some
    return tmp_path, app, records


def test_an_ordered_actor_is_split_in_one_pass_and_the_result_is_that_of_plain_python(
    tills: tuple[Path, str, list[Output]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, app, records = tills
    monkeypatch.setattr(first_pass.KeySplitPlan, "__init__", None)  # there is no first pass
    written: list[list[Output]] = []
    for split in (1, 3):
        to: dict[str, Any] = {"uri": str(folder / str(split)), "outputs": f"parquet:{folder / str(split)}"}
        report, snapshot = done(folder, app, split=split, **to)
        assert rebuilt(snapshot) == live(folder, find_app(app).plan())
        assert (report.notes, report.events, report.replayed) == ([], len(records), len(records))
        assert report.commits == sum(tape.decode_cut(one.cut or b"").tape for one in rebuilt(snapshot))
        written.append(lived.outputs(folder / str(split), snapshot, "minutes"))
    assert written[0] == written[1]
    found = [msgspec.json.decode(one.value or b"", type=two_inputs.Minute) for one in written[1]]
    assert {(one.who, one.end): one.amount for one in found} == two_inputs.expected(records)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"order": "canonical"}, "in canonical order, "),
        ({"until": Limits(watermark_ms=300_000)}, "up to a limit, "),
        ({"outputs": "topic:-again"}, "outputs of an ordered actor that go to topics "),
    ],
)
def test_a_rebuild_that_does_not_split_an_ordered_actor_says_why(
    tills: tuple[Path, str, list[Output]], options: dict[str, Any], why: str
) -> None:
    report, _ = done(tills[0], tills[1], split=3, **options)
    assert [note for note in report.notes if note.startswith(f"it was not split: {why}")]


def test_an_ordered_partition_with_a_refused_record_is_not_split(tmp_path: Path) -> None:
    app = two_inputs.made(refunds=True, order="event-time", on_error="dead-letter")
    bad = Output("paid", b"a", b"nothing", 0)
    lived.append(tmp_path, [*two_inputs.moves("paid", range(3), 1), bad], {"paid": 2, "refunds": 2})
    lived.live_on(tmp_path, app)
    report, snapshot = done(tmp_path, app, split=2)
    (note,) = report.notes
    assert note.endswith(" was not split: 1 record of it did not decode")
    assert rebuilt(snapshot) == live(tmp_path, find_app(app).plan())


def test_what_cannot_be_split_is_replayed_whole_and_the_report_says_why(
    tally: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the last commit fell in the middle of a drain."""
    sums = check
    asked: list[int] = []

    def differ(overview: Overview, results: Sequence[Totals]) -> Totals:
        asked.append(overview.shards)
        if len(asked) == 2:
            raise UnsplittableError("the shards do not add up to the whole")
        return sums(overview, results)

    monkeypatch.setattr(split_units, "check", differ)
    report, snapshot = done(tally, split=3)
    assert rebuilt(snapshot) == live(tally, find_app(TALLY).plan())
    assert len(asked) == 4
    assert (report.events, report.replayed) == (320, 320), "the shards of partition 1 were for nothing"
    assert report.commits == sum(tape.decode_cut(one.cut or b"").tape for one in rebuilt(snapshot))
    assert report.notes == ["partition 1 was not split: the shards do not add up to the whole"]


def test_a_key_that_was_dealt_to_two_shards_is_no_snapshot_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, referring.records(), {"prices": 1, "orders": 1})
    lived.live_on(tmp_path, REFERRING)
    shards = count()  # each input asks once for a key
    monkeypatch.setattr(first_pass, "shard_of", lambda _key, of: next(shards) % of)
    report, snapshot = done(tmp_path, REFERRING, split=2)
    (note,) = report.notes
    assert note.startswith("partition 0 was not split: two shards have the row ")
    assert rebuilt(snapshot) == live(tmp_path, find_app(REFERRING).plan())


def test_refused_records_are_not_counted_as_replayed_and_have_the_letters_of_the_service(
    tmp_path: Path,
) -> None:
    bad = [Output("orders", b"b", b"no order", 0)] * 3
    lived.append(tmp_path, [*referring.records(), *bad], {"prices": 1, "orders": 1})
    lived.live_on(tmp_path, LENIENT)
    letters = [one.headers for one in lived.read(tmp_path, "referring.dead-letters")]
    for split in (1, 3):
        place = tmp_path / f"outputs-{split}"
        to: dict[str, Any] = {"uri": str(tmp_path / f"split-{split}"), "outputs": f"parquet:{place}"}
        report, snapshot = done(tmp_path, LENIENT, split=split, **to)
        assert (report.events, report.replayed, report.refused) == (40, 40, 3)
        assert report.notes == []
        (file,) = (place / "referring" / snapshot.manifest.id).glob("*.parquet")
        written = [one for one in parquet.read_table(file).to_pylist() if "dead" in one["topic"]]
        assert [tuple((h["key"], h["value"]) for h in one["headers"]) for one in written] == letters


def test_a_limit_within_a_commit_is_no_reason_to_replay_in_one_piece(tmp_path: Path) -> None:
    """The records behind the limit, and those of the next commit, were read ahead when the first pass looks
    at them again.
    """
    for first in (0, referring.ROUNDS):
        lived.append(tmp_path, referring.records(first), {"prices": 1, "orders": 1})
        lived.live_on(tmp_path, REFERRING)
    until = Limits(watermark_ms=100_000)
    _, whole = done(tmp_path, REFERRING, until=until, split=1)
    report, split = done(tmp_path, REFERRING, until=until, split=3, uri=str(tmp_path / "split"))
    assert report.notes == ["partition 0 ends within commit 0"]
    assert rebuilt(split) == rebuilt(whole)


def test_a_block_that_was_altered_is_found(tally: Path, tmp_path: Path) -> None:
    place = tmp_path / "blocks"
    with BlockWriter(place) as writer:
        writer.write([b"a" * 1_000])
        writer.write([b"b"])
    assert list(BlockReader[list[bytes]](place, list[bytes])) == [[b"a" * 1_000], [b"b"]]
    data = bytearray(place.read_bytes())
    data[-14] ^= 1  # of the last block; what is behind it is the end
    place.write_bytes(data)
    blocks = iter(BlockReader[list[bytes]](place, list[bytes]))
    assert next(blocks) == [b"a" * 1_000]
    with pytest.raises(CorruptStateError, match="does not fit its checksum"):
        next(blocks)
