"""``tailrace snapshot``: a service's real log and state; and wrong arguments."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.cli.main import execute
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots import Snapshots
from tests.history.differences import differences_of, from_the_log, of_folders
from tests.history.rebuilding.lived import live_on, serve_tallies
from tests.runtime import served

APP = "tests.runtime.served:app"


@pytest.fixture
def lived(tmp_path: Path, capsys) -> Path:
    """A folder with the log and the state of a service that has run to its end, and a snapshot of it."""
    serve_tallies(tmp_path)
    assert create(tmp_path) == 0
    capsys.readouterr()
    return tmp_path


def create(folder: Path, *arguments: str) -> int:
    at = ("--log", str(folder / "log"), "--snapshots", str(folder / "snaps"))
    return execute(["snapshot", "create", APP, *at, *arguments])


def take(folder: Path, *, automatic: bool) -> None:
    with closing(EmbeddedLog(folder / "log")) as log:
        snapshots = Snapshots(str(folder / "snaps"), "tally")
        take_snapshot(served.app.plan(), log, snapshots, TakingOptions(automatic=automatic))


def snapshot(folder: Path, command: str, *arguments: str) -> int:
    return execute(["snapshot", command, *arguments, "--snapshots", str(folder / "snaps")])


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
        plan = served.app.plan()
        sides = (
            of_folders(plan, lived / "state"),
            of_folders(served.app.renamed("b").plan(), lived / "state2"),
        )
        assert differences_of(plan, *sides) == []

    def test_in_place_with_the_state_folder_lost(self, lived) -> None:
        live_on(lived, APP, state="anew", from_snapshot=str(lived / "snaps"))
        for folder in ("state", "anew"):
            assert from_the_log(APP, lived / "log", folder=lived / folder) == []
        assert from_the_log(APP, lived / "log", snapshot=lived / "snaps") == []
