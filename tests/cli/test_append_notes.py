"""An append of a file that is killed and repeated appends each row once; the log notes how far each file was appended."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli import append as appending
from tailrace.core.errors import AppMovedError
from tailrace.core.records import Output
from tailrace.history.reading.handed_over import APPENDED
from tailrace.history.reading.residence import Move, check_lives_here, note_move
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.embedded.writer import EmbeddedWriter
from tests.cli.commands import SHOP, Ended, done, records, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(appending, "_ROWS_PER_COMMIT", 4)
    done("log", "create", "raw", "--partitions", 2, "--log", tmp_path / "log")
    return tmp_path / "log"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    write(path, range(10))
    return path


def write(path: Path, rows: Any) -> None:
    path.write_text("".join(f'{{"n":{row}}}\n' for row in rows))


def append(folder: Path, *arguments: object) -> Ended:
    return run("log", "append", "raw", "--key", "n", "--log", folder, *arguments)


def there(folder: Path) -> list[int]:
    """The numbers in the topic."""
    return sorted(int.from_bytes(one.key, "big") for _, one in records(folder, "raw"))


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("has_committed", [False, True])
@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("skips", [False, True])
def test_an_append_that_is_killed_at_any_commit_and_repeated_appends_each_row_once(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch, *, at: int, has_committed: bool, skips: bool
) -> None:
    if skips:
        file.write_text(f"no row\n{file.read_text()}no row\n")
    arguments = [file, *(["--skip-invalid"] if skips else [])]
    commit, left = EmbeddedWriter.commit, [at]

    def killing(self: EmbeddedWriter, *given: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            return commit(self, *given)
        if has_committed:
            commit(self, *given)
        raise Killed

    monkeypatch.setattr(EmbeddedWriter, "commit", killing)
    with pytest.raises(Killed):
        append(folder, *arguments)
    monkeypatch.setattr(EmbeddedWriter, "commit", commit)
    assert len(there(folder)) == min(10, 4 * (at + has_committed))
    append(folder, *arguments)
    assert there(folder) == list(range(10))
    append(folder, *arguments)
    assert there(folder) == list(range(10))


def test_a_file_that_is_appended_already_is_appended_again_only_if_asked(folder: Path, file: Path) -> None:
    assert append(folder, file).code == 0
    ended = append(folder, file, "--json")
    assert ended.lines == [{"topic": "raw", "appended": 0, "before": 10, "invalid": 0}]
    assert f"{file}: the rows up to 10 were appended before. --again appends them again." in ended.err
    assert append(folder, file, "--again").code == 0
    assert there(folder) == sorted([*range(10), *range(10)])


def test_of_a_file_that_has_grown_the_new_rows_are_appended(folder: Path, file: Path) -> None:
    append(folder, file)
    write(file, range(13))
    assert "3 records appended" in append(folder, file).err
    assert there(folder) == list(range(13))


def test_another_file_under_the_same_path_and_the_file_in_another_topic_are_appended_whole(
    folder: Path, file: Path
) -> None:
    append(folder, file)
    write(file, range(1, 11))
    assert append(folder, file).err == "10 records appended to raw.\n"
    write(file, range(1, 4))
    assert append(folder, file).err == "3 records appended to raw.\n"
    done("log", "create", "other", "--log", folder)
    assert done("log", "append", "other", file, "--log", folder).err == "3 records appended to other.\n"


def test_a_file_that_was_changed_after_its_append_was_stopped_is_refused(folder: Path, file: Path) -> None:
    file.write_text(f'{file.read_text()}no row\n{{"n":10}}\n')
    assert "continue with --from-row 11" in append(folder, file).err
    write(file, [99, *range(1, 12)])
    ended = append(folder, file)
    assert (ended.code, there(folder)) == (1, list(range(10)))
    assert f"an append of {file} was stopped after its row 10, and these rows have changed since" in ended.err
    assert append(folder, file, "--from-row", 11).code == 0
    assert there(folder) == list(range(12))


def test_a_row_that_was_invalid_and_is_corrected_is_where_the_repeated_command_continues(
    folder: Path, file: Path
) -> None:
    rows = file.read_text()
    file.write_text(rows.replace('{"n":6}', "no row"))
    assert append(folder, file).code == 1
    file.write_text(rows)
    assert append(folder, file).code == 0
    assert append(folder, file, "--from-row", 7).code == 0
    assert there(folder) == list(range(10))


def test_standard_input_is_not_noted(folder: Path) -> None:
    for _ in range(2):
        run("log", "append", "raw", "--key", "n", "--log", folder, stdin=b'{"n":1}\n')
    assert there(folder) == [1, 1]


def test_a_record_of_another_program_among_the_notes_is_named(folder: Path, file: Path) -> None:
    append(folder, file)
    ((_, note),) = records(folder, APPENDED)[-1:]
    with closing(EmbeddedLog(folder, create=False)) as log:
        log.append_all([Output(APPENDED, note.key, b"{}", 0)])
    ended = append(folder, file)
    assert (ended.code, there(folder)) == (1, list(range(10)))
    assert f"'{APPENDED}' has a record at offset {note.offset + 1} which is no note of an append" in ended.err


def test_events_of_an_app_that_has_left_the_log_are_refused_with_its_new_place(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done("topics", "apply", "--app", SHOP, "--log", log)
    with closing(EmbeddedLog(log, create=False)) as opened:
        note_move(opened, ["shop"], Move("left", "00", "kafka://elsewhere:9092"))
        with pytest.raises(AppMovedError):
            check_lives_here(opened, "shop")
    row = b'{"customer":"a","at_ms":1,"cents":1}\n'
    ended = run("log", "append", "purchases", "--app", SHOP, "--log", log, stdin=row)
    assert ended.code == 1
    assert "the app 'shop' was moved from this log to kafka://elsewhere:9092" in ended.err
    assert records(log, "purchases") == []
