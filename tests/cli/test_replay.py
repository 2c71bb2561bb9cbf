"""``tailrace replay``: a service's real log and state, compared, traced, debugged."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tailrace.cli.main import execute
from tailrace.core import rows
from tailrace.state import RocksStore, StateIdentity
from tests.cli.commands import cleaned
from tests.history.rebuilding.lived import serve_tallies
from tests.runtime import served

APP = "tests.runtime.served:app"


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log and the state of a service that has run to its end."""
    folder = tmp_path_factory.mktemp("lived")
    serve_tallies(folder)
    return folder


def run(lived: Path, *arguments: str) -> int:
    return execute(["replay", APP, "--log", str(lived / "log"), "--state", str(lived / "state"), *arguments])


def test_a_replay_of_what_ran_finds_no_difference(lived, capsys) -> None:
    assert run(lived, "--compare") == 0
    out = capsys.readouterr().out
    assert "4 partitions" in out
    assert "120 records" in out  # 60 ticks and the message that each of them sends
    assert f"the state in {lived / 'state' / 'tally'}, the changelog, outputs" in out
    assert "differences: none" in out


def test_a_comparison_under_a_given_hash_seed_is_refused(lived, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert run(lived, "--compare") == 2
    assert "does not show what depends on the order of a set" in capsys.readouterr().err


def test_state_that_was_tampered_with_is_found_and_named(lived, capsys) -> None:
    store = RocksStore(lived / "state" / "tally" / "0", StateIdentity("tally", 0))
    prefix = rows.actor_prefix("Counter")
    row, value = next(
        (row, value)
        for row, value in store.scan(prefix, rows.prefix_end(prefix))
        if not rows.read_state_row(row).rest
    )
    assert store.cut is not None
    store.write({row: value[:1] + msgspec.msgpack.encode({"count": 99})}, store.cut)
    store.close()
    try:
        assert run(lived, "--compare") == 1
        out = capsys.readouterr().out
        key = rows.read_state_row(row).key.decode()
        assert f"the state of Counter, key '{key}' (app 'tally' partition 0) differs" in out
        assert f"count: 99 in {lived / 'state' / 'tally' / '0'}, 3 in the replay" in out
        assert "differences: 1\n" in out
        assert run(lived, "--compare", "--partition", "1") == 0
    finally:
        store = RocksStore(lived / "state" / "tally" / "0", StateIdentity("tally", 0))
        assert store.cut is not None
        store.write({row: value}, store.cut)
        store.close()


def test_other_code_is_found_and_named(lived, capsys, monkeypatch) -> None:
    other = served.make_app()
    counter = next(one for one in other.plan().actors if one.name == "Counter").cls
    monkeypatch.setattr(served, "app", other)

    def double(self, event, ctx):
        self.count += 2

    route = next(one for one in other.plan().inputs if one.name == "ticks").routes[0]
    object.__setattr__(route, "call", double)
    assert counter.__name__ == "Counter"
    assert run(lived, "--compare", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    kinds = {one["kind"] for one in said["first"]}
    assert kinds == {"output"}
    assert run(lived, "--compare") == 1
    told = capsys.readouterr().out
    assert f"differences: {said['differences']:,}" in told
    assert "is not compared any further: commit 0 of app 'tally' partition 0 came out differently" in told
    assert run(lived) == 1
    assert "commit 0 of app 'tally' partition 0 came out differently" in capsys.readouterr().err


def test_a_state_in_use_is_compared_by_its_changelog(lived, capsys) -> None:
    store = RocksStore(lived / "state" / "tally" / "2", StateIdentity("tally", 2))
    try:
        assert run(lived, "--compare") == 0
    finally:
        store.close()
    out = capsys.readouterr().out
    assert f"note: {lived / 'state' / 'tally' / '2'} is in use" in out


def test_a_trace_tells_what_happened_to_a_key(lived, capsys) -> None:
    assert run(lived, "--trace", "k7", "--compare") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1970-01-01T00:00:00.007Z  ticks @")
    assert lines[0].endswith("Tick(who='k7', at=7, amount=1)")
    assert lines[1:6] == [
        "  Counter.ticked",
        "    count: nothing → 1",
        "    timer 'final': nothing → 1970-01-01T00:00:01.007Z",
        "    emits to 'counts': Count(who='k7', count=1)",
        "    emits to 'tally.inbox': Told(amount=1)",
    ]
    assert "    count: 2 → 3" in lines
    at = lines.index("1970-01-01T00:00:01.047Z  timer 'final'")
    assert lines[at + 1 : at + 4] == [
        "  Counter.final",
        "    timer 'final': 1970-01-01T00:00:01.047Z → nothing",
        "    emits to 'finals': Count(who='k7', count=3)",
    ]
    assert "\x1b" not in "".join(lines)


def begun(lived: Path, *more: str, slow_ms: int = 0) -> subprocess.Popen[bytes]:
    """A replay as a process, which is read from."""
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace", "replay", APP, "--log", str(lived / "log"), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TALLY_SLOW_MS": str(slow_ms)},
    )


def test_a_trace_that_nobody_reads_further_is_no_error(lived) -> None:
    with begun(lived, "--trace", "k7") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before a line of it is there
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_full_disk_under_a_trace_is_no_failure_of_a_handler(lived) -> None:
    typed = ["replay", APP, "--log", str(lived / "log"), "--trace", "k7"]
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "tailrace", *typed]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=120, check=False)
    assert ended.returncode == 1
    assert ended.stderr == b"tailrace: The output cannot be written: No space left on device.\n"


def test_what_the_log_has_deleted_is_refused_without_its_archive_and_replayed_with_it(
    lived, tmp_path, capsys
) -> None:
    shutil.copytree(lived / "log", tmp_path / "log")
    at, archive = ("--log", str(tmp_path / "log")), str(tmp_path / "archive")
    assert execute(["archive", *at, "--to", archive]) == 0
    assert execute(["replay", APP, *at, "--json"]) == 0
    *_, expected = capsys.readouterr().out.splitlines()
    cleaned(tmp_path / "log", "ticks")
    assert execute(["replay", APP, *at]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the log has deleted offsets " in line
    assert "Read an archive (--archive)" in line
    assert execute(["replay", APP, *at, "--archive", archive, "--json"]) == 0
    *_, found = capsys.readouterr().out.splitlines()
    assert json.loads(found) | {"seconds": 0} == json.loads(expected) | {"seconds": 0}


def test_a_key_to_which_nothing_happened_is_told(lived, capsys) -> None:
    assert run(lived, "--trace", "k7", "--trace", "k700") == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert notes == ["note: the replay found nothing for the key 'k700'"]


def test_a_replay_can_stop_at_a_time(lived, capsys) -> None:
    assert run(lived, "--trace", "k7", "--until", "1970-01-01T00:00:00.030Z") == 0
    assert "at=27" in (out := capsys.readouterr().out)
    assert "at=47" not in out
    assert "no limit was reached" not in out


def test_the_debugger_stops_at_the_first_line_of_the_handler(lived, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("p event.who, self.count\nc\np self.count\nq\n"))
    assert run(lived, "--break", "k7") == 0
    said = capsys.readouterr()
    assert "served.py" in said.out
    assert "('k7', 0)" in said.out
    assert "(Pdb) 1" in said.out
    assert said.err.count("before Counter.ticked") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "k7", "--json"], "--trace and --break write text"),
        (
            ["--trace", "k7", "--key", "k8"],
            "--trace and --break name the keys of the replay: leave --key out",
        ),
        (["--partition", "4"], "has the partitions 0 to 3"),
        (["--until", "soon"], "'soon' is not a time"),
        (["--until", "17"], "'17' is not a time"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(lived, arguments, said, capsys) -> None:
    assert run(lived, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_key_of_another_partition_is_refused(lived, capsys) -> None:
    numbers = [run(lived, "--key", "k7", "--partition", str(number)) for number in range(4)]
    assert sorted(numbers) == [0, 2, 2, 2]
    assert "belong to partition" in capsys.readouterr().err
