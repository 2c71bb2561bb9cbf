"""What was once stored is read by the present code: state, log, tape, snapshots, archive, and the record of an upgrade.

Each file of ``tests/kept/files`` was made by ``python -m tests.kept.make`` with the code of its time. What is in it equals what plain
Python makes of the events. So a format that is changed by mistake is noticed. One that is changed on purpose gets another number:
then the old one is refused with that number, or read as before, and a new file is made beside the old ones.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.describe_rows import picture
from tailrace.core.errors import OldFormatError
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading import beginnings
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.opening import open_history
from tailrace.history.reading.stretches import scan
from tailrace.history.reading.upgrades import last_upgrade
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log.interface import Log, OneCommitLog
from tailrace.log.opening import open_log
from tailrace.state import RocksStore, StateIdentity, StateMemory
from tailrace.state.snapshots import Snapshots
from tailrace.state.store_cut import decode_store_cut
from tests.cli.commands import done, run
from tests.kept.app import ONE, TWO, Said, expected, expected_said, outputs
from tests.kept.make import APP, EVENTS, FILES, FORMATS, FULL, MORE, Kept, append, formats

TO_THE_END = ("--end-of-input", "--allow-dead-letters")
Pictures = dict[tuple[str, str], dict[str, str]]


@pytest.fixture(scope="module", params=sorted(one.name for one in FILES.glob("*.tar.xz")))
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in a kept file. Nothing may change it."""
    folder = tmp_path_factory.mktemp("kept")
    with tarfile.open(FILES / request.param) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture
def kept(file: Path, tmp_path: Path) -> Path:
    """A copy."""
    return shutil.copytree(file, tmp_path / "kept")


@contextmanager
def read_or_refused(kept: Path) -> Generator[None]:
    """What happens within reads a kept file: it may be refused if its format has a lower number than that of today, and by that alone."""
    of_file = msgspec.json.decode((kept / "kept.json").read_bytes(), type=Kept).formats
    numbers = [f"has format {one}," for name, one in of_file.items() if one < formats()[name]]
    try:
        yield
    except OldFormatError as error:
        if not any(one in error.what for one in numbers):
            raise


def check(
    plan: Plan, handled: int, tasks: Iterable[tuple[bytes | None, Iterable[tuple[bytes, bytes]]]]
) -> None:
    """The rows of all tasks are what so many events lead to; ``tasks``: the cut and the rows of each."""
    actors, found, stands = {one.name: one for one in plan.actors}, Pictures(), list[dict[str, int]]()
    for cut, some in tasks:
        assert cut
        stands.append(tape.decode_cut(cut).operators)
        state = (pair for pair in some if pair[0][:1] == rows.STATE)
        for prefix, pairs in groupby(state, lambda pair: rows.key_prefix(pair[0])):
            parts = rows.read_state_row(prefix)
            of_key = {row[len(prefix) :]: value for row, value in pairs}
            found[parts.actor, parts.key.decode()] = picture(actors[parts.actor], of_key)
    assert len(stands) == plan.partitions

    def stands_at(actor: str, key: str) -> int:
        return stands[partition_of(key.encode(), plan.partitions)][actor]

    assert found == expected(EVENTS[:handled], int(plan.version), stands_at)


def committed(history: AppHistory) -> Iterator[tuple[bytes | None, Iterable[tuple[bytes, bytes]]]]:
    """Of each task, by its changelog."""
    for number in range(history.plan.partitions):
        one = history.committed(number, with_rows=True)
        assert one.rows is not None
        yield one.cut, one.rows.rows()


def said(log: Log) -> list[tuple[str, int, str]]:
    """All outputs."""
    found = [
        msgspec.json.decode(one.value or b"", type=Said) for n in range(2) for one in scan(log, "said", n)
    ]
    return sorted((one.name, one.at, one.what) for one in found)


def replayed(plan: Plan, log: OneCommitLog) -> None:
    """The tape leads to the outputs and the state that are there."""
    report = replay(plan, log, ReplayOptions(any_environment=True, compare=True))
    assert report.differences.count == 0, report.differences
    assert report.rows
    assert report.outputs


@pytest.mark.parametrize("place", ["log", "archive"])
def test_the_log_and_its_archive_have_the_events_the_state_and_a_tape_that_leads_to_it(
    kept: Path, place: str
) -> None:
    with read_or_refused(kept):
        given = (kept / "log", None) if place == "log" else (None, str(kept / "archive"))
        with closing(open_history(*given)) as log:
            events = sorted(
                one.value or b""
                for topic in ("sales", "rates")
                for n in range(2)
                for one in scan(log, topic, n)
            )
            count = len(EVENTS) if place == "log" else MORE
            assert events == sorted(one.value or b"" for one in outputs(EVENTS[:count]))
            check(ONE.plan(), MORE, committed(AppHistory(ONE.plan(), log)))
            replayed(ONE.plan(), log)


def test_a_state_folder_has_the_rows_and_the_cut_of_the_log(kept: Path) -> None:
    with read_or_refused(kept), closing(open_log(kept / "log")) as log, ExitStack() as stack:
        found = []
        for number, (cut, some) in enumerate(committed(AppHistory(ONE.plan(), log))):
            store = RocksStore(
                kept / "state" / "keeper" / str(number), StateIdentity("keeper", number), StateMemory()
            )
            stack.enter_context(closing(store))
            assert decode_store_cut(store.cut or b"").core == cut
            found.append((cut, [pair for pair in store.rows() if pair[0][:1] == rows.STATE]))
            assert found[-1][1] == [pair for pair in some if pair[0][:1] == rows.STATE]
        check(ONE.plan(), MORE, found)


@pytest.mark.parametrize(
    ("name", "source", "kind", "handled", "app"),
    [
        ("full", "live", "full", FULL, ONE),
        ("more", "live", "incremental", MORE, ONE),
        ("migrated", "edited", "incremental", FULL, TWO),
        (None, "tape", "full", MORE, ONE),
    ],
)
def test_snapshots_of_each_kind_have_their_state(
    kept: Path, name: str | None, source: str, kind: str, handled: int, app: tr.App
) -> None:
    with read_or_refused(kept):
        snapshots = Snapshots(str(kept / "snapshots"), "keeper")
        (found,) = (one for one in snapshots.list() if (one.name, one.source) == (name, source))
        assert found.kind == kind
        opened = snapshots.open(found.id)
        assert opened.verify() == []
        check(app.plan(), handled, [(one.cut, opened.rows(one.partition)) for one in found.tasks])


def test_a_service_continues_with_its_log_and_its_state_folders(kept: Path, quiet_logs: None) -> None:
    with read_or_refused(kept):
        done("run", f"{APP}:ONE", *TO_THE_END, "--log", kept / "log", "--state", kept / "state")
        with closing(open_log(kept / "log")) as log:
            assert said(log) == expected_said(EVENTS)
            replayed(ONE.plan(), log)


def test_a_service_starts_with_a_snapshot(kept: Path, quiet_logs: None) -> None:
    """Without its state folders."""
    with read_or_refused(kept):
        given = ("--log", kept / "log", "--state", kept / "empty", "--from-snapshot", kept / "snapshots")
        done("run", f"{APP}:ONE", *TO_THE_END, *given)
        with closing(open_log(kept / "log")) as log:
            assert said(log) == expected_said(EVENTS)


def test_an_upgrade_stays_and_its_version_continues(
    kept: Path, quiet_logs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, made_in = (
        kept / "upgraded",
        msgspec.json.decode((kept / "kept.json").read_bytes(), type=Kept).folder,
    )

    def moved(uri: str, app: str) -> Snapshots:
        return Snapshots(uri.replace(made_in, str(kept)), app)

    monkeypatch.setattr(beginnings, "Snapshots", moved)
    with read_or_refused(kept):
        with closing(open_log(where)) as log:
            record = last_upgrade(log, "keeper")
            assert record is not None
            assert (record.step, record.old, record.new, record.outputs) == ("done", "1", "2", "keep")
            check(TWO.plan(), MORE, committed(AppHistory(TWO.plan(), log)))
            for snapshot, beside, app in ((record.snapshot, "", TWO), (record.kept, "/kept", ONE)):
                opened = moved(record.snapshots + beside, "keeper").open(snapshot)
                check(
                    app.plan(), MORE, [(one.cut, opened.rows(one.partition)) for one in opened.manifest.tasks]
                )
        refused = run("run", f"{APP}:ONE", "--until-end", "--log", where, "--state", kept / "state-of-one")
        assert (refused.code, "has replaced version '1'" in refused.err) == (1, True), refused.err
        append(where, MORE, len(EVENTS))
        done("run", f"{APP}:TWO", *TO_THE_END, "--log", where, "--state", kept / "state-of-two")
        with closing(open_log(where)) as log:
            assert said(log) == expected_said(EVENTS)
            replayed(TWO.plan(), log)


# --- formats


def test_there_is_a_file_with_the_formats_of_today() -> None:
    newest = max(FILES.glob("*.tar.xz"))
    with tarfile.open(newest) as tar:
        file = tar.extractfile("./kept.json")
        assert file is not None
        found = msgspec.json.decode(file.read(), type=Kept).formats
    assert found == formats(), (
        "a format has a new number: python -m tests.kept.make NAME makes a file with it; keep the others"
    )


@pytest.mark.parametrize("name", [one for one in FORMATS if one != "snapshot"])
def test_an_old_format_is_refused_with_its_number(
    kept: Path, name: str, quiet_logs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots of all formats are read."""
    module: Any = FORMATS[name]
    number, step = module.FORMAT, 0x10 if module is rows else 1
    monkeypatch.setattr(module, "FORMAT", number + step)
    said = f"has format {number // step}, .*reads only format {number // step + 1}"
    if name == "archive":
        with pytest.raises(OldFormatError, match=said), closing(open_history(None, str(kept / "archive"))):
            pass
    else:
        refused = run("run", f"{APP}:ONE", *TO_THE_END, "--log", kept / "log", "--state", kept / "state")
        assert refused.code == 1
        assert re.search(said, refused.err), refused.err
