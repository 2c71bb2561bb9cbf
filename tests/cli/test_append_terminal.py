"""``tailrace log append`` with a terminal as its standard input."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.cli.commands import SHOP, done, records


def test_rows_may_be_typed_in_and_it_is_told_that_they_are_waited_for(tmp_path: Path) -> None:
    done("log", "create", "--app", SHOP, "--log", tmp_path / "log")
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-m", "tailrace", "log", "append", "purchases", "--key", "customer", "--log"]
    appending = subprocess.Popen(
        [*command, str(tmp_path / "log")], stdin=terminal, stderr=subprocess.PIPE, cwd=tmp_path
    )
    try:
        assert appending.stderr is not None
        assert appending.stderr.readline() == b"Reading from the terminal, until Ctrl-D.\n"
        os.write(keyboard, b'{"customer":"a"}\n\x04')
        assert appending.stderr.readline() == b"1 record appended to purchases.\n"
        assert appending.wait(120) == 0
    finally:
        appending.kill()
        appending.communicate()
        os.close(keyboard)
        os.close(terminal)
    assert [record.value for _, record in records(tmp_path / "log", "purchases")] == [b'{"customer":"a"}']
