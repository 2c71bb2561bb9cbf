"""A selection that finds nothing is no failure, and it is said: a misspelt key or a wrong bound never looks
like an empty result.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.core.values.partitioner import partition_of
from tests.cli import shop
from tests.cli.commands import SHOP, done, run
from tests.cli.shop import Purchase


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that the shop has run on."""
    path = tmp_path_factory.mktemp("selections")
    done("topics", "apply", "--app", SHOP, "--log", path / "log")
    lines = b"\n".join(map(shop.purchases.encode, [Purchase("a", 1, 4), Purchase("b", 2, 5)]))
    done("log", "append", "purchases", "--app", SHOP, "--log", path / "log", stdin=lines)
    done("run", SHOP, "--end-of-input", "--after-end", "--log", path / "log", "--state", path / "state")
    return path


def test_a_key_that_nothing_was_for_is_named_by_a_replay(place: Path) -> None:
    said = done("replay", SHOP, "--key", "a", "--key", "nobody", "--log", place / "log").out
    assert "note: the replay found nothing for the key 'nobody'" in said
    assert "'a'" not in said
    workers = done(
        "replay", SHOP, "--key", "a", "--key", "nobody", "--workers", 2, "--log", place / "log"
    ).out
    assert workers.count("note: the replay found nothing for the key") == 1


def test_a_key_without_state_is_named_by_a_rebuild(place: Path, tmp_path: Path) -> None:
    for number, options in enumerate(([], ["--order", "canonical"])):
        said = done(
            *("rebuild", SHOP, "--key", "a", "--key", "nobody", "--key", "none", "--workers", 1, *options),
            *("--to", tmp_path / str(number), "--log", place / "log"),
        ).out
        assert "note: there is no state of the keys nobody, none" in said


def test_a_limit_that_nothing_comes_to_is_told_by_a_replay(place: Path) -> None:
    note = "note: no limit was reached"
    for options in (["--until", "2100-01-01"], ["--until", "2100-01-01", "--workers", 2]):
        assert note in done("replay", SHOP, *options, "--log", place / "log").out
    assert note not in done("replay", SHOP, "--until-offset", "purchases=0", "--log", place / "log").out


def test_an_offset_that_the_log_does_not_have_is_refused_by_all_that_stop_there(
    place: Path, tmp_path: Path
) -> None:
    to = ("--to", tmp_path / "to", "--workers", 1)
    for command in (("replay", SHOP), ("rebuild", SHOP, *to), ("rebuild", SHOP, *to, "--order", "canonical")):
        ended = run(*command, "--until-offset", "purchases:0=1000", "--log", place / "log")
        assert ended.code == 2
        assert "offset 1000 of 'purchases' partition 0 is outside the log, which holds 0 to " in ended.err


def test_an_offset_that_the_service_has_not_reached_is_noted(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    shutil.copytree(place / "log", path)
    more = b"\n".join(shop.purchases.encode(Purchase("a", 1, 6 + number)) for number in range(5))
    done("log", "append", "purchases", "--app", SHOP, "--log", path, stdin=more)
    number = partition_of(b"a", 3)
    note = f"note: the last commit of partition {number} is before the offset limit: purchases ends at "
    for command in (("replay", SHOP), ("rebuild", SHOP, "--to", tmp_path / "to", "--workers", 1)):
        said = done(*command, "--until-offset", f"purchases:{number}=5", "--log", path).out
        assert f"{note}1 instead of 5" in said
        assert note not in done(*command, "--until-offset", f"purchases:{number}=1", "--log", path).out


def test_a_range_without_records_is_told_by_a_dump_and_the_file_is_as_it_would_be(place: Path) -> None:
    for options in (["--from", "500"], ["--from", "2100-01-01"], ["--from", "3", "--until", "1"]):
        ended = done("log", "dump", "purchases", *options, "--log", place / "log")
        assert not ended.out
        assert (
            "'purchases' has no record there; its offsets by partition: 0 from 0 up to 0, 1 from 0 up to 1"
            in ended.err
        )
    assert not done("log", "dump", "purchases", "--from", "0", "--log", place / "log").err
    assert not done("log", "dump", "totals", "--partition", "0", "--log", place / "log").err
