"""``tailrace snapshot`` and ``tailrace compare``: a service's real log and state; and wrong arguments."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.compare import _side
from tailrace.cli.main import execute
from tailrace.core import rows
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.state import RocksStore, StateIdentity
from tailrace.state.snapshots import Snapshots
from tests.runtime import served
from tests.runtime.tallies import ticks

APP = "tests.runtime.served:app"
two = served.make_app(partitions=2)


@pytest.fixture
def lived(tmp_path: Path, capsys) -> Path:
    """A folder with the log and the state of a service that has run to its end, and a snapshot of it."""
    log = EmbeddedLog(tmp_path / "log")
    log.create_topic("ticks", TopicSettings(4))
    log.append_all(ticks(20, 3))
    log.close()
    run_service(tmp_path)
    assert create(tmp_path) == 0
    capsys.readouterr()
    return tmp_path


def run_service(folder: Path, app: str = APP, state: str = "state", **options: Any) -> None:
    given = ServiceOptions(
        app,
        folder / "log",
        folder / state,
        end_of_input=True,
        after_end=True,
        create_topics=True,
        log_format="json",
        **options,
    )
    name = app.partition("@")[2]
    Host(given, (served.app.renamed(name) if name else served.app).plan()).run()


def create(folder: Path, *arguments: str) -> int:
    at = ("--log", str(folder / "log"), "--snapshots", str(folder / "snaps"))
    return execute(["snapshot", "create", APP, *at, *arguments])


def take(folder: Path, *, automatic: bool) -> None:
    with closing(EmbeddedLog(folder / "log")) as log:
        snapshots = Snapshots(str(folder / "snaps"), "tally")
        take_snapshot(served.app.plan(), log, snapshots, TakingOptions(automatic=automatic))


def snapshot(folder: Path, command: str, *arguments: str) -> int:
    return execute(["snapshot", command, *arguments, "--snapshots", str(folder / "snaps")])


def compare(folder: Path, one: str, other: str, *arguments: str) -> int:
    return execute(["compare", APP, str(folder / one), str(folder / other), *arguments])


class TestSnapshots:
    def test_it_is_created_listed_shown_verified_and_deleted(self, lived, capsys) -> None:
        assert create(lived, "--name", "before-release", "--json") == 0
        made = json.loads(capsys.readouterr().out)
        assert (made["kind"], made["source"], made["name"]) == ("full", "live", "before-release")
        assert made["rows"] >= 20
        assert snapshot(lived, "list", "tally", "--json") == 0
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["id"] for one in listed][-1] == made["id"]
        assert len(listed) == 2
        assert snapshot(lived, "list", APP) == 0
        assert "before-release" in capsys.readouterr().out
        assert snapshot(lived, "show", APP, "before-release") == 0
        shown = capsys.readouterr().out
        assert made["id"] in shown
        assert "continues at ticks" in shown
        assert snapshot(lived, "show", APP, "before-release", "--json") == 0
        assert len(json.loads(capsys.readouterr().out)["tasks"]) == 4
        assert snapshot(lived, "verify", APP) == 0
        assert "all intact" in capsys.readouterr().out
        assert snapshot(lived, "delete", APP, "before-release") == 0
        assert f"deleted {made['id']}" in capsys.readouterr().out
        assert snapshot(lived, "list", "tally", "--json") == 0
        assert len(capsys.readouterr().out.splitlines()) == 1

    def test_automatic_ones_go_and_savepoints_stay(self, lived, capsys) -> None:
        for automatic in (False, True, True, True):
            take(lived, automatic=automatic)
        assert snapshot(lived, "delete", APP, "--keep", "2") == 0
        assert "deleted" in capsys.readouterr().out
        assert snapshot(lived, "list", "tally", "--json") == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["automatic"] for one in found] == [False, False, True, True]

    def test_a_place_without_snapshots_is_told_and_no_failure(self, lived, capsys) -> None:
        assert snapshot(lived, "list", "nobody") == 0
        said = capsys.readouterr()
        assert f"there is no snapshot of 'nobody' in '{lived / 'snaps'}'" in said.err
        assert said.out == ""

    def test_what_others_build_upon_is_deleted_with_them_or_not_at_all(self, lived, capsys) -> None:
        assert create(lived, "--name", "first") == 0
        assert create(lived, "--incremental") == 0
        assert snapshot(lived, "delete", APP, "first") == 1
        assert "--dependants" in capsys.readouterr().err
        assert snapshot(lived, "delete", APP, "first", "--dependants") == 0
        assert capsys.readouterr().out.count("deleted ") == 2

    def test_an_altered_file_is_named(self, lived, capsys) -> None:
        file = next((lived / "snaps").rglob("*-state-*.parquet"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        assert snapshot(lived, "verify", APP) == 1
        assert file.name in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["snapshot", "create", APP, "--log", "{}/nowhere", "--snapshots", "{}/snaps"], "nowhere"),
            (
                ["snapshot", "create", f"{APP}@new", "--log", "{}/log", "--snapshots", "{}/snaps"],
                "has never run",
            ),
            (["snapshot", "show", APP, "other", "--snapshots", "{}/snaps"], "no snapshot 'other'"),
            (["snapshot", "show", "someone", "--snapshots", "{}/snaps"], "no snapshot yet"),
            (["snapshot", "show", APP, "--snapshots", "{}/snaps#1"], "no snapshot yet"),
            (
                ["snapshot", "create", APP, "--log", "{}/log", "--snapshots", "{}/log/snaps"],
                "in the log's folder",
            ),
            (["snapshot", "delete", APP, "--snapshots", "{}/snaps"], "Name what to delete"),
            (["snapshot", "delete", APP, "nope", "--snapshots", "{}/snaps"], "no snapshot 'nope'"),
            (
                ["run", APP, "--log", "{}/log", "--state", "{}/new", "--from-snapshot", "{}/none"],
                "no snapshot yet",
            ),
            (["compare", APP, "{}/log", "{}/nothing"], "holds nothing of the app"),
            (["compare", APP, "{}/log"], "Missing argument"),
        ],
    )
    def test_wrong_arguments(self, lived, capsys, arguments, said) -> None:
        assert execute([one.replace("{}", str(lived)) for one in arguments]) in (1, 2)
        err = capsys.readouterr().err
        assert said in err
        assert "Traceback" not in err
        assert not (lived / "new").exists() or not any((lived / "new").rglob("CURRENT"))


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 99}', b'{"format": 1}'])
def test_a_manifest_that_cannot_be_read_is_named_by_every_command(lived, capsys, content: bytes) -> None:
    (folder,) = (lived / "snaps" / "tally").iterdir()
    (folder / "manifest.json").write_bytes(content)
    for command in (("list", "tally"), ("delete", "tally", "nothing"), ("show", "tally", folder.name)):
        assert snapshot(lived, *command) == 1
        assert folder.name in capsys.readouterr().err


class TestStart:
    def test_beside_under_another_name(self, lived, capsys) -> None:
        at = ["--log", str(lived / "log"), "--state", str(lived / "state2"), "--end-of-input", "--after-end"]
        code = execute(
            ["run", APP, "--as", "b", "--from-snapshot", f"{lived / 'snaps'}", "--create-topics", *at]
        )
        assert code == 0
        capsys.readouterr()
        assert (
            execute(["compare", APP, str(lived / "state"), str(lived / "state2"), "--with", f"{APP}@b"]) == 0
        )
        assert "differences: none, the bytes are equal (outputs are not compared)" in capsys.readouterr().out

    def test_in_place_with_the_state_folder_lost(self, lived, capsys) -> None:
        run_service(lived, state="anew", from_snapshot=str(lived / "snaps"))
        assert compare(lived, "state", "anew") == 0


def count_wrong(lived: Path) -> None:
    """The first key of a service's state folder has counted to 127."""
    store = RocksStore(lived / "state" / "tally" / "0", StateIdentity("tally", 0))
    prefix = rows.actor_prefix("Counter")
    row, value = next(iter(store.scan(prefix, rows.prefix_end(prefix))))
    assert store.cut is not None
    store.write({row: value[:-1] + b"\x7f"}, store.cut)
    store.close()


class TestCompare:
    def test_a_folder_a_log_and_a_snapshot_are_equal(self, lived, capsys) -> None:
        for one, other in (("state", "log"), ("snaps", "state"), ("log", "snaps#latest")):
            assert compare(lived, one, other) == 0
            assert "differences: none" in capsys.readouterr().out

    def test_what_differs_is_shown(self, lived, capsys) -> None:
        count_wrong(lived)
        assert compare(lived, "state", "snaps") == 1
        out = capsys.readouterr().out
        assert "count: 127 in" in out
        assert compare(lived, "snaps", "state", "--json") == 1
        said = json.loads(capsys.readouterr().out)
        assert said["differences"] == 1
        assert said["first"][0]["changes"][0]["label"] == "count"

    def test_a_path_that_leads_nowhere_is_named(self, lived, capsys, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)  # what is wrong is not that it is missing
        assert compare(lived, "state", "snap") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"'{lived / 'snap'}' holds nothing of the app 'tally'" in line

    def test_an_app_of_other_partitions(self, lived, capsys) -> None:
        assert compare(lived, "state", "log", "--with", "tests.cli.shop:app") == 2
        assert "partitions" in capsys.readouterr().err

    def test_a_snapshot_of_other_partitions(self, lived, capsys) -> None:
        for one, other in (("snaps", "state"), ("state", "snaps")):
            assert execute(["compare", f"{__name__}:two", str(lived / one), str(lived / other)]) == 2
            assert "has 4 partitions, 'tally' has 2" in capsys.readouterr().err

    def test_a_task_that_has_no_state_folder_has_no_state_and_gets_none(self, lived, capsys) -> None:
        shutil.rmtree(lived / "state" / "tally" / "3")
        assert compare(lived, "state", "snaps") == 1
        assert "partition 3" in capsys.readouterr().out
        assert not (lived / "state" / "tally" / "3").exists()

    def test_a_log_that_goes_on_meanwhile_is_taken_as_of_one_commit(self, lived) -> None:
        plan = served.app.plan()
        with ExitStack() as closing:
            side = _side(str(lived / "log"), plan, closing)
            before = [(side.cut(number), list(side.rows(number))) for number in range(4)]
            log = EmbeddedLog(lived / "log")
            log.append_all(ticks(20, 3, 3))
            run_service(lived)
            assert log.clean(deletions_kept_ms=0).busy
            assert [(side.cut(number), list(side.rows(number))) for number in range(4)] == before
        assert not log.clean(deletions_kept_ms=0).busy
        log.close()
