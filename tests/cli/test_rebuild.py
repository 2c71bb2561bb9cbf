"""``tailrace rebuild``: a service's log made into a snapshot that it starts from; its wrong arguments, a full
disk.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tailrace.core.engine import tape
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import TO_THE_END, at, cleaned, done, run
from tests.history.differences import from_the_log
from tests.history.rebuilding import lived, shops
from tests.history.rebuilding.lived import TALLY, live, rebuilt
from tests.runtime.processes import ROOT
from tests.runtime.tallies import ticks

SHOPS = "tests.history.rebuilding.shops:app"


@pytest.fixture(scope="module")
def tally(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tally")
    for first in range(3):
        lived.serve_tallies(folder, 20, 1, first_round=first)
    return folder


def test_a_snapshot_is_made_reported_and_named(tally: Path, tmp_path: Path) -> None:
    arguments = ("rebuild", TALLY, "--log", tally / "log", "--to", tmp_path, "--workers", 1)
    said = done(*arguments, "--name", "before-the-change").out
    assert "rebuilt tally along the tape: snapshot " in said
    assert "120 events, 23 keys, " in said
    assert "environment: python cpython 3." in said
    snapshot = Snapshots(str(tmp_path), "tally").open("before-the-change")
    assert rebuilt(snapshot) == live(tally, find_app(TALLY).plan())
    report = json.loads(done(*arguments, "--json").out)
    assert (report["events"], report["replayed"], report["order"]) == (120, 120, "tape")
    assert set(report["phases"]) == {"read", "handle", "write"}
    assert Snapshots(str(tmp_path), "tally").open(report["snapshot"]).verify() == []


@pytest.mark.parametrize(("order", "units"), [("tape", 4), ("stages", 4)])
def test_a_plan_says_what_would_be_done_and_makes_nothing(
    tally: Path, tmp_path: Path, order: str, units: int
) -> None:
    made = tmp_path / "made"
    arguments = ("rebuild", TALLY, "--log", tally / "log", "--to", made, "--order", order, "--plan")
    plan = json.loads(done(*arguments, "--json").out)
    # Half of the records that the service has handled are messages, which stages do not read.
    records = 120 if order == "tape" else 60
    assert (plan["order"], len(plan["units"])) == (order, units)
    assert sum(one["records"] for one in plan["units"]) == records
    assert records * 10 < sum(one["bytes"] for one in plan["units"]) < records * 100
    assert f"about {records} records, 0.0 MB" in done(*arguments).out
    assert not made.exists()


def test_a_plan_refuses_what_the_rebuild_would_refuse(tally: Path, tmp_path: Path) -> None:
    arguments = ("rebuild", TALLY, "--log", tally / "log", "--to", tmp_path / "made", "--key", "k1")
    refused = run(*arguments, "--order", "stages", "--until", "2999-01-01", "--plan")
    assert refused.code == 2
    assert "sends records to itself" in refused.err


def test_a_service_goes_on_from_what_was_rebuilt(tally: Path, tmp_path: Path) -> None:
    """With an empty state folder and no changelog to read: what it then holds is what the live one holds."""
    own = shutil.copytree(tally, tmp_path / "own")
    done("rebuild", TALLY, "--log", own / "log", "--to", tmp_path / "made", "--workers", 1)
    lived.serve_tallies(own, 20, 1, first_round=3)
    arguments = ("--log", own / "log", "--state", tmp_path / "state", *TO_THE_END)
    done("run", TALLY, *arguments, "--from-snapshot", tmp_path / "made")
    done("replay", TALLY, "--log", own / "log", "--state", tmp_path / "state", "--compare")


def test_a_state_is_replaced_by_what_corrected_code_makes_though_its_version_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, shops.sales(50), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    where = ("--log", tmp_path / "log")
    monkeypatch.setenv("SHOPS_WRONG", "sets")
    done("rebuild", SHOPS, *where, "--to", tmp_path / "to", "--workers", 1, "--order", "stages")
    assert from_the_log(SHOPS, tmp_path / "log", snapshot=tmp_path / "to")
    start = ("run", SHOPS, *at(tmp_path), *TO_THE_END, "--from-snapshot", tmp_path / "to")
    for _ in range(2):
        done(*start, "--replace-state")
        assert from_the_log(SHOPS, tmp_path / "log", snapshot=tmp_path / "to") == []


def test_behind_a_state_that_was_put_in_it_does_not_matter_which_version_ran_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, shops.sales(50), {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    monkeypatch.setattr(shops.app, "version", "corrected")
    monkeypatch.setattr(shops.app, "_plan", None)
    monkeypatch.setenv("SHOPS_WRONG", "fee")
    rebuild = ("rebuild", SHOPS, "--log", tmp_path / "log", "--to", tmp_path / "to", "--workers", 1, "--json")
    said = json.loads(done(*rebuild).out)
    assert any("the tape was written by version '1'" in one for one in said["notes"])
    start = ("run", SHOPS, *at(tmp_path), *TO_THE_END, "--replace-state")
    done(*start, "--from-snapshot", f"{tmp_path}/to#{said['snapshot']}")
    lived.append(tmp_path, shops.sales(50, first=50), {"sales": 2})
    done(*start, "--from-snapshot", f"{tmp_path}/to#{said['snapshot']}")
    said = json.loads(done(*rebuild).out)
    (note,) = said["notes"]
    assert note.startswith("partitions 0, 1 began with the snapshot ")
    snapshot = Snapshots(f"{tmp_path}/to", "shops").open(said["snapshot"])
    assert rebuilt(snapshot) == live(tmp_path, find_app(SHOPS).plan())


def test_no_service_starts_from_some_keys_only(tally: Path, tmp_path: Path) -> None:
    """Beside or in place: the other keys would be gone."""
    done("rebuild", TALLY, "--log", tally / "log", "--to", tmp_path / "some", "--key", "k7", "--workers", 1)
    where = ("--log", tally / "log", "--state", tmp_path / "state", *TO_THE_END)
    for more in (["--as", "beside"], ["--replace-state"]):
        ended = run("run", TALLY, *where, "--from-snapshot", tmp_path / "some", *more)
        assert ended.code == 1
        assert "holds the keys k7 only: all others would be gone. Start from a whole one." in ended.err


def test_limits_keys_and_orders_are_taken_from_the_command_line(tally: Path, tmp_path: Path) -> None:
    arguments = ("rebuild", TALLY, "--log", tally / "log", "--to", tmp_path, "--workers", 1, "--json")
    assert json.loads(done(*arguments, "--key", "k7").out)["keys"] == 1
    some = done(*[one for one in arguments if one != "--json"], "--key", "k7").out
    assert " events, 1 key, " in some
    assert "note: it holds the key k7 only\n" in some
    assert "there is no state of" not in some
    assert json.loads(done(*arguments, "--order", "stages").out)["order"] == "stages"
    said = json.loads(done(*arguments, "--until", "1970-01-01T00:00:00.030Z").out)
    assert 30 < said["events"] < 90
    assert any("ends within commit" in one for one in said["notes"])
    said = json.loads(done(*arguments, "--as-of", "1970-01-01T00:00:00.030Z").out)
    assert said["order"] == "stages"
    assert 0 < said["events"] < 90
    assert any(one.startswith("as of 1970-01-01T00:00:00.030Z") for one in said["notes"])
    whole = json.loads(done(*arguments).out)
    said = json.loads(done(*arguments, "--from-snapshot", f"{tmp_path}#{whole['snapshot']}").out)
    assert (said["base"], said["replayed"], said["events"]) == (whole["snapshot"], 0, whole["events"])


def test_what_is_left_out_is_said(tally: Path, tmp_path: Path) -> None:
    shutil.copytree(tally / "log", tmp_path / "log")
    where = ("--log", tmp_path / "log")
    cleaned(tmp_path / "log", "ticks")
    arguments = ("rebuild", TALLY, *where, "--to", tmp_path / "to", "--workers", 1)
    assert "--after-deleted" in run(*arguments).err
    said = done(*arguments, "--after-deleted").out
    assert "are deleted, and left out\n" in said
    assert "note: --after-deleted is given: in stages\n" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--key", "k1", "--outputs", "csv"], 2, "outputs cannot go to 'csv'"),
        (["--outputs", "parquet:"], 2, "--outputs: it is empty"),
        (["--outputs", "topic:-new"], 2, "append what these files hold"),
        (["--to", ""], 2, "--to: it is empty"),
        (["--from-snapshot", "nowhere"], 1, "there is no snapshot yet"),
        (["--archive", "nowhere"], 1, "there is no archive in"),
        (["--name", "latest"], 2, "cannot be the name of a snapshot"),
        (["--to", "s3://bucket/x?endpoint_override=127.0.0.1:1"], 2, "needs a folder for what is under way"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(
    tally: Path, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    to = [] if "--to" in arguments else ["--to", tmp_path / "to"]
    ended = run("rebuild", TALLY, "--log", tally / "log", *to, *arguments)
    assert ended.code == code
    (line,) = ended.err.splitlines()
    assert said in line
    assert not list((tmp_path / "to").glob("*/*/manifest.json"))


def test_what_is_made_does_not_go_into_the_log(tally: Path) -> None:
    for option in ("--to {}", "--outputs parquet:{}"):
        place = option.format(tally / "log" / "made").split()
        ended = run("rebuild", TALLY, "--log", tally / "log", *place)
        assert ended.code == 2
        assert "is in the log's folder, which must hold only the log" in ended.err
    assert not (tally / "log" / "made").exists()


def test_where_there_is_no_room_nothing_is_published_and_the_next_run_goes_on(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    lived.serve_tallies(tally, 5_000, 1)
    arguments = ("rebuild", TALLY, "--log", tally / "log", "--to", tmp_path / "made", "--workers", 1)
    opened = EmbeddedLog(tally / "log", create=False)  # so that the other needs no room to open the log
    ended = subprocess.run(
        [sys.executable, "-B", "-m", "tailrace", *map(str, arguments)], cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}", "PATH": ""}, capture_output=True, text=True,
        check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )  # fmt: skip
    opened.close()
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "a file has reached the size" in line
    assert Snapshots(str(tmp_path / "made"), "tally").list() == []
    said = done(*arguments).out
    assert "continued an interrupted rebuild" in said
    snapshot = Snapshots(str(tmp_path / "made"), "tally").open()
    assert rebuilt(snapshot) == live(tally, find_app(TALLY).plan())


def test_a_handler_that_fails_is_named_and_goes_to_the_dead_letters_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sale = shops.Sale("shop-1", 5_000, 77)
    unlucky = shops.sales(1)[0]._replace(key=b"shop-1", value=msgspec.json.encode(sale))
    lived.append(tmp_path, [*shops.sales(20), unlucky], {"sales": 2})
    lived.live_on(tmp_path, SHOPS)
    monkeypatch.setenv("SHOPS_WRONG", "fails")
    arguments = ("rebuild", SHOPS, "--log", tmp_path / "log", "--to", tmp_path / "to", "--workers", 1)
    ended = run(*arguments)
    log = EmbeddedLog(tmp_path / "log", create=False)
    ends = [log.end_offset("sales", number) for number in range(2)]
    log.close()
    assert ended.code == 1
    assert "topic 'sales'" in ended.err
    assert any(f"offset {end - 1}" in ended.err for end in ends)
    assert "key 'shop-1'" in ended.err
    said = done(*arguments, "--on-error", "dead-letter").out
    assert "1 failed, and went to the dead letters:" in said


def test_a_service_that_was_started_from_a_snapshot_is_rebuilt_from_there(tmp_path: Path) -> None:
    """Its tape names the snapshot: what came before is not its history."""
    lived.serve_tallies(tmp_path, 20, 2)
    done("rebuild", TALLY, "--log", tmp_path / "log", "--to", tmp_path / "made", "--workers", 1)
    lived.append(tmp_path, ticks(20, 2, 2), {"ticks": 4})
    done("run", TALLY, *at(tmp_path), *TO_THE_END, "--as", "beside", "--from-snapshot", tmp_path / "made")
    beside = f"{TALLY}@beside"
    report, snapshot = lived.done(tmp_path, beside)
    wanted = live(tmp_path, find_app(beside).plan())
    assert rebuilt(snapshot) == wanted
    assert all(tape.decode_cut(one.cut).base for one in wanted if one.cut)
    assert report.replayed == 80
    done("rebuild", beside, "--log", tmp_path / "log", "--to", tmp_path / "again", "--workers", 2)
