"""``tailrace log``: create, list, tail and dump."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import SHOP, done, refused, run
from tests.cli.shop import visits


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "log"
    done("log", "create", "t", "--partitions", 2, "--log", path)
    return path


def fill(folder, *outputs, partition=None):
    log = EmbeddedLog(folder)
    log.append_all(outputs, partition)
    log.close()


def test_a_topic_is_created_once_with_its_settings(tmp_path) -> None:
    path = tmp_path / "new" / "log"
    said = [
        done("log", "create", "t", "--partitions", 2, "--retention", "7d", "--log", path).err
        for _ in range(2)
    ]
    assert said == ["created t, 2 partitions\n", "t exists already\n"]
    (found,) = done("log", "list", "--json", "--log", path).lines
    assert found == {
        "topic": "t",
        "partitions": 2,
        "offsets": 0,
        "starts": [0, 0],
        "ends": [0, 0],
        "compacted": False,
        "retention_ms": 604_800_000,
        "retention_bytes": None,
    }
    other = run("log", "create", "t", "--partitions", 3, "--log", path)
    assert other.code == 1
    assert "Use the settings it has, or another name." in other.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create"], "Missing argument 'TOPIC'"),
        (["create", "t", "--compacted", "--retention", "1d"], "leave --compacted or the retention out"),
        (["create", "t", "--partitions", "0"], "0 is not in the range"),
        (["create", "t", "--retention", "300000000d"], "is longer than 100000d"),
        (["create", " "], "' ' cannot be the name of a topic. Use letters, digits"),
        (["dump", "t", "--from", "yesterday"], "is not a time; write 2013-01-01"),
        (["dump", "t", "--from", "2013-01-01T00:00:00"], "is not a time; write 2013-01-01"),
        (["dump", "t", "--partition", "2"], "has 2 partitions, 0 to 1"),
        (["dump", "t", "--app", SHOP], "declares no topic 't'"),
        (["tail", "t", "-n", "-1"], "-1 is not in the range"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(folder, arguments, said) -> None:
    ended = run("log", *arguments, "--log", folder)
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert said in line


@pytest.mark.parametrize("command", [["list"], ["dump", "t"], ["tail", "t"], ["append", "t"]])
def test_a_log_that_is_not_there_is_not_made_by_looking(tmp_path, command) -> None:
    said = refused("log", *command, "--log", tmp_path / "log", code=1)
    assert "there is no log in" in said
    assert "`tailrace topics apply --app APP` creates a log" in said
    assert not (tmp_path / "log").exists()


def test_a_dump_loses_nothing_of_any_record(folder) -> None:
    odd = [
        Output("t", None, None, 1),
        Output("t", b"k", b"null", 2),
        Output("t", b"\xff", b"\xfe", 3, (("a", b"x"), ("a", b"\xff"))),
        Output("t", b"", b"plain text", 4),
        Output("t", b"k", b'{"a":\n 1e400}', 5),
        Output("t", b"k", b'"quoted"', 1 << 61),
    ]
    fill(folder, *odd, partition=0)
    assert done("log", "dump", "t", "--log", folder).lines == [
        {"partition": 0, "offset": 0, "timestamp_ms": 1, "key": None},
        {"partition": 0, "offset": 1, "timestamp_ms": 2, "key": "k", "value": None},
        {
            "partition": 0,
            "offset": 2,
            "timestamp_ms": 3,
            "key_base64": "/w==",
            "value_base64": "/g==",
            "headers": [["a", "x"], ["a", {"base64": "/w=="}]],
        },
        {"partition": 0, "offset": 3, "timestamp_ms": 4, "key": "", "value_text": "plain text"},
        {"partition": 0, "offset": 4, "timestamp_ms": 5, "key": "k", "value_text": '{"a":\n 1e400}'},
        {"partition": 0, "offset": 5, "timestamp_ms": 1 << 61, "key": "k", "value": "quoted"},
    ]


@pytest.mark.parametrize(
    ("bounds", "offsets"),
    [
        ([], [0, 1, 2, 3, 4]),
        (["--from", "2"], [2, 3, 4]),
        (["--until", "2"], [0, 1]),
        (["--from", "1", "--until", "3"], [1, 2]),
        (["--from", "9"], []),
        (["--from", "1970-01-01T00:00:02Z"], [1, 3, 4]),
        (["--until", "2000ms"], [0, 2]),
        (["--from", "1000ms", "--until", "1970-01-01T01:00:03+01:00"], [2, 3]),
        (["--from", "1970-01-02"], []),
        (["--partition", "1"], []),
    ],
)
def test_a_dump_can_be_bounded_by_offsets_and_times(folder, bounds, offsets) -> None:
    # Timestamps are event times, so they are not in order: 0 s, 3 s, 1 s, 2 s, 4 s.
    fill(folder, *(Output("t", b"k", b"1", at * 1_000) for at in (0, 3, 1, 2, 4)), partition=0)
    lines = done("log", "dump", "t", *bounds, "--log", folder).lines
    assert [line["offset"] for line in lines] == offsets


def test_with_an_app_keys_and_values_are_read_as_it_declares_them(tmp_path) -> None:
    path = tmp_path / "log"
    done("topics", "apply", "--app", SHOP, "--log", path)
    visit = b'{"customer":3,"at":"2013-01-01T00:00:00Z"}'
    done("log", "append", "visits", "--app", SHOP, "--log", path, stdin=visit)
    fill(path, Output("visits", b"odd", b"\xc1", 0), partition=2)
    first, second = sorted(
        done("log", "dump", "visits", "--app", SHOP, "--log", path).lines,
        key=lambda line: -line["timestamp_ms"],
    )
    assert (first["key"], first["value"]) == (3, {"customer": 3, "at": "2013-01-01T00:00:00Z"})
    assert (second["key"], second["value_base64"]) == ("odd", "wQ==")
    assert visits.name == "visits"


def test_tail_shows_the_last_records_of_all_partitions_by_time(folder) -> None:
    for at in range(6):
        fill(folder, Output("t", b"k%d" % at, b"%d" % at, at), partition=at % 2)
    lines = done("log", "tail", "t", "-n", 3, "--no-follow", "--json", "--log", folder).lines
    assert [line["value"] for line in lines] == [3, 4, 5]
    text = done("log", "tail", "t", "-n", 1, "--no-follow", "--log", folder).out
    assert text == "1970-01-01T00:00:00.005Z  1/2        k5  5\n"


def test_what_a_terminal_would_obey_is_shown_and_not_sent(folder) -> None:
    fill(folder, Output("t", b"\x1b[2J", b"\x1b]0;x\x07", 0), partition=0)
    text = done("log", "tail", "t", "--no-follow", "--log", folder).out
    assert "\x1b" not in text
    assert "\\x1b[2J" in text
    fill(folder, Output("t", b"\xc2\x9b2J", b"\x7f\xc2\x9b31m", 0, (("h\u009b", b"\xc2\x85"),)), partition=0)
    for command in (("dump", "t"), ("tail", "t", "--no-follow"), ("tail", "t", "--no-follow", "--json")):
        text = done("log", *command, "--log", folder).out
        assert all(line.isprintable() for line in text.split("\n")), command


def test_tail_follows_what_is_appended_by_others(folder) -> None:
    tail = ("log", "tail", "t", "-n", "0", "--json")
    command = [sys.executable, "-m", "tailrace", *tail, "--log", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            # It may begin after the first ones, never miss one in between.
            numbers: list[int] = []
            for at in range(10_000):
                fill(folder, Output("t", b"k", b"%d" % at, at))
                if at == 0:
                    continue
                if len(numbers) >= 3 or process.poll() is not None:
                    break
                if _readable(process.stdout):
                    numbers.append(int(process.stdout.readline().split(b'"value":')[1].split(b"}")[0]))
            assert numbers == list(range(numbers[0], numbers[0] + 3))
        finally:
            process.kill()


def test_tail_ends_when_nobody_reads_it_any_more_though_no_record_comes(folder) -> None:
    fill(folder, *(Output("t", b"k", b"%d" % at, at) for at in range(5)))
    command = [sys.executable, "-m", "tailrace", "log", "tail", "t", "--log", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for _ in range(5):
                assert process.stdout.readline()
            process.stdout.close()
            assert (process.wait(60), process.stderr.read()) == (0, b"")
        finally:
            process.kill()


def _readable(stream) -> bool:
    return bool(select.select([stream], [], [], 0.01)[0])


def test_output_that_nobody_reads_further_is_no_error(folder) -> None:
    fill(folder, *(Output("t", b"k", b'"%s"' % (b"x" * 1_000), at) for at in range(2_000)), partition=0)
    command = [sys.executable, "-m", "tailrace", "log", "dump", "t", "--log", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


@pytest.mark.parametrize("command", ["log list", "log dump purchases", "archive"])
def test_a_full_disk_under_standard_output_is_told_in_one_line(tmp_path, command) -> None:
    folder = tmp_path / "log"
    done("topics", "apply", "--app", SHOP, "--log", folder)
    fill(folder, Output("purchases", b"k", b"1", 0))
    more = {"archive": ["--log", str(folder), "--to", str(tmp_path / "archive")]}
    typed = [sys.executable, "-m", "tailrace", *command.split(), *more.get(command, ["--log", str(folder)])]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            typed, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=120, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr == b"tailrace: The output cannot be written: No space left on device.\n"
