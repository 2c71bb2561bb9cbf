"""Outside of ``log`` no module knows a concrete log; ``log.opening`` opens all of them."""

from __future__ import annotations

import pickle
import tomllib
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import LogUnavailableError
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.archive import Archive, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.opening import Past, is_url, open_log, open_past

PLACE = TopicPartition("ships", 0)
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_no_module_outside_is_excepted() -> None:
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one["name"] == "only log.opening knows a concrete log")
    assert "ignore_imports" not in contract


def test_only_the_command_that_writes_archives_knows_of_them() -> None:
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one.get("forbidden_modules") == ["tailrace.log.archive"])
    assert contract["ignore_imports"] == ["tailrace.cli.archive -> tailrace.log.archive"]


def filled(folder: Path) -> None:
    """A log with five records, of which the first three are archived only."""
    with closing(EmbeddedLog(folder / "log")) as log:
        log.create_topic("ships", TopicSettings(1))
        log.append_all([Output("ships", b"key", b"%d" % at, at) for at in range(4)], 0)
        archive_log(log, Archive.at(folder / "archive"))
        log.append_all([Output("ships", b"key", b"4", 4)], 0)
        log.delete_before("ships", 0, 3)


def values(past: Past) -> list[bytes | None]:
    with closing(open_past(past)) as log, closing(log.reader({PLACE: log.start_offset(*PLACE)})) as reader:
        found: list[bytes | None] = []
        while (fetch := reader.fetch(*PLACE, 2)).records:
            found += [one.value for one in fetch.records]
        return found


def test_a_past_is_a_log_or_its_archive_or_both_as_one_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert values(Past(log="log")) == [b"3", b"4"]
    assert values(Past(archive="archive")) == [b"0", b"1", b"2", b"3"]
    both = Past(log="log", archive="archive").absolute()
    monkeypatch.chdir("/")
    for one in (
        both,
        pickle.loads(pickle.dumps(both)),
        msgspec.msgpack.decode(msgspec.msgpack.encode(both), type=Past),
    ):
        assert values(one) == [b"0", b"1", b"2", b"3", b"4"]
    assert not caplog.records
    assert values(Past(log=str(tmp_path / "gone"), archive=both.archive)) == [b"0", b"1", b"2", b"3"]
    assert "its archive alone is read" in caplog.text
    with pytest.raises(LogUnavailableError, match="there is no log"):
        open_past(Past(log=str(tmp_path / "gone")))
    with pytest.raises(LogUnavailableError, match="there is no archive"):
        open_past(Past(log=both.log, archive=str(tmp_path / "gone")))


def test_a_past_elsewhere_keeps_its_address() -> None:
    past = Past(log="kafka://127.0.0.1:1/staging.", archive="s3://bucket/prefix")
    assert past.absolute() == past


def test_a_log_is_opened_again_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailableError, match="there is no log"):
        open_log(tmp_path / "log")
    log = open_log(tmp_path / "log", create=True)
    again = open_log(log.place)
    assert again.identity == log.identity
    again.close()
    log.close()


def test_the_place_of_a_cluster_has_its_addresses_and_its_prefix() -> None:
    log = open_log("kafka://127.0.0.1:1,127.0.0.1:2/staging.")
    assert log.place == "kafka://127.0.0.1:1,127.0.0.1:2/staging."
    assert is_url(log.place)
    log.close()
