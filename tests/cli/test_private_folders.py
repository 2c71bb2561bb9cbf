"""What holds events, keys and states is for the user who runs the service, and its group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.commands import SHOP, done

LINE = b'{"customer": "a", "at_ms": 1, "cents": 2}'


@pytest.mark.usefixtures("quiet_logs")
def test_no_file_is_reached_by_other_users(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        log = ("--log", tmp_path / "data" / "log")
        done("topics", "apply", "--app", SHOP, *log)
        done("log", "append", "purchases", "--app", SHOP, *log, stdin=LINE)
        done("run", SHOP, "--until-end", *log, "--state", tmp_path / "data" / "state")
        done("snapshot", "create", SHOP, *log, "--snapshots", tmp_path / "snapshots")
        done("archive", "--to", tmp_path / "archive", *log)
        done("export", SHOP, "--to", "parquet", tmp_path / "tables", *log)
        done("log", "copy", tmp_path / "copy", *log)
    finally:
        os.umask(before)
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    tops = {one.relative_to(tmp_path).parts[0] for one in files}
    assert tops == {"data", "snapshots", "archive", "tables", "copy"}
    open_ones = [
        one
        for one in files
        if all(folder.stat().st_mode & 0o001 for folder in one.parents if tmp_path in folder.parents)
        and one.stat().st_mode & 0o004
    ]
    assert open_ones == []
