"""What the command line needs from its process: streams, arguments that are text, an end at SIGTERM before it begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.runtime.processes import ROOT, Process, wait_until

GRAPH = (sys.executable, "-m", "tailrace", "graph", "tests.cli.shop:app")


def test_text_that_the_output_does_not_have_is_escaped() -> None:
    command = "from tailrace.cli import main; main.execute = lambda _: print('\u65e5ü') or 0; main.main()"
    ended = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"\\u65e5\xfc\n"), ended.stderr


def test_a_standard_stream_that_is_closed_is_one_that_nobody_reads(tmp_path: Path) -> None:
    for closed in ("0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"):
        command = f'"$@" {closed}'
        ended = subprocess.run(
            ["sh", "-c", command, "sh", *GRAPH], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, ""), closed
        assert ("Customer" in ended.stdout) == ("1>" not in closed)


@pytest.mark.parametrize(
    "arguments", [("get", "shop:app", "Customer", "Zo\udceb"), ("run", "sh\udcffop:app")]
)
def test_an_argument_that_is_not_utf_8_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    shown = arguments[-1].encode(errors="surrogateescape").decode(errors="backslashreplace")
    assert (ended.code, ended.err) == (2, f"tailrace: {shown} is not UTF-8: correct it.\n")


def test_a_setting_that_is_not_utf_8_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_LOG", "l\udcffg")
    assert run("status", "shop").err == "tailrace: TAILRACE_LOG=l\\xffg is not UTF-8: correct it.\n"


def test_a_service_that_is_told_to_stop_while_its_app_is_imported_ends_with_0(tmp_path: Path) -> None:
    (tmp_path / "slow_app.py").write_text(
        f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(600)\n"
    )
    path = os.pathsep.join((str(tmp_path), str(ROOT / "framework")))
    service = Process(tmp_path / "said", "tailrace", "run", "slow_app:app", environment={"PYTHONPATH": path})
    try:
        wait_until((tmp_path / "begun").exists, "the app is imported")
        service.signal(signal.SIGTERM)
        assert service.ended() == 0
    finally:
        service.kill()
