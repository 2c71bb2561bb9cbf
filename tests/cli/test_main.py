"""What the command line needs from its process: streams, arguments that are text, an end at SIGTERM before it begins."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.cli import main
from tailrace.core.errors import TailraceError
from tests.cli.commands import run
from tests.runtime.processes import PATIENCE_S, ROOT, Process, wait_until

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


@pytest.fixture
def slow_app(tmp_path: Path) -> str:
    """The path of modules with an app that is never imported to its end; the file ``begun`` is there once it has begun."""
    (tmp_path / "slow_app.py").write_text(
        f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(600)\n"
    )
    return os.pathsep.join((str(tmp_path), str(ROOT / "framework")))


def test_a_service_that_is_told_to_stop_while_its_app_is_imported_ends_with_0(
    tmp_path: Path, slow_app: str
) -> None:
    service = Process(
        tmp_path / "said", "tailrace", "run", "slow_app:app", environment={"PYTHONPATH": slow_app}
    )
    try:
        wait_until((tmp_path / "begun").exists, "the app is imported")
        service.signal(signal.SIGTERM)
        assert service.ended() == 0
    finally:
        service.kill()


@pytest.fixture
def as_process_1() -> Sequence[str]:
    """How a command is process 1 of its own; as any other process where this is forbidden."""
    for how in (("unshare",), ("unshare", "--user", "--map-root-user")):
        alone = (*how, "--pid", "--fork", "--kill-child")
        with contextlib.suppress(OSError):
            if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
                return alone
    return ()


@pytest.mark.parametrize(("command", "code"), [("run", 0), ("rebuild", 128 + signal.SIGTERM)])
def test_sigterm_ends_process_1_of_a_container(
    command: str, code: int, tmp_path: Path, slow_app: str, as_process_1: Sequence[str]
) -> None:
    """The kernel drops a signal for process 1 that has no handler: there is no default action."""
    container = subprocess.Popen(
        [*as_process_1, sys.executable, "-m", "tailrace", command, "slow_app:app"],
        env={**os.environ, "PYTHONPATH": slow_app},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until((tmp_path / "begun").exists, "the app is imported")
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
        os.kill(int(children[0]) if as_process_1 else container.pid, signal.SIGTERM)
        assert container.wait(PATIENCE_S) in (code, -signal.SIGTERM if code and not as_process_1 else code)
    finally:
        container.kill()
        container.wait()


def test_what_an_error_quotes_neither_reaches_the_terminal_raw_nor_forges_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TailraceError("Account.paid failed with ValueError: \x1b]0;PWNED\x07\ntailrace: all is well")

    monkeypatch.setattr(main.tailrace, "main", fails)
    assert main.execute(["status"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert "PWNED" in said
