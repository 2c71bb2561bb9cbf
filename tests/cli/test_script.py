"""``app.run()``: what ``tailrace run`` does, from a script."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.cli import script
from tailrace.cli.main import execute
from tailrace.core.declare.run_options import RunOptions
from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import done

ROOT = Path(__file__).resolve().parents[2]

SHIPS = """
import sys
import msgspec
import tailrace as tr

class Report(msgspec.Struct, frozen=True):
    ship: tr.Key[str]
    at_ms: tr.EventTime[int]

app = tr.App("ships")
reports = app.topic("reports", Report)
counts = app.topic("counts", Report)

@app.actor
class Ship(tr.Actor):
    heard: int = 0

    @tr.process(reports)
    def report(self, event: Report, ctx: tr.Context[str]) -> None:
        self.heard += 1
        ctx.emit(counts, Report(event.ship, self.heard))
"""
GUARDED = 'if __name__ == "__main__":\n    '
EVENTS = "".join(f'{{"ship": "ship {n % 10}", "at_ms": {1_600_000_000_000 + n}}}\n' for n in range(200))


def run_script(folder: Path, end: str, *, name: str = "ships.py", module: bool = False) -> Any:
    (folder / name).write_text(SHIPS + end)
    arguments = ["-m", name.removesuffix(".py")] if module else [name]
    path = os.pathsep.join([str(ROOT / "framework"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def offsets(log: Path, topic: str) -> int:
    opened = EmbeddedLog(log, create=False)
    try:
        return sum(opened.end_offset(topic, number) for number in range(opened.partitions(topic)))
    finally:
        opened.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the script, and a log with events."""
    (tmp_path / "ships.py").write_text(SHIPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    try:
        done("topics", "apply", "--app", "ships:app")
        done("log", "append", "reports", "-", "--app", "ships:app", stdin=EVENTS.encode())
    finally:
        sys.modules.pop("ships", None)
    return tmp_path


@pytest.mark.parametrize(("workers", "module"), [(1, False), (2, False), (2, True)])
def test_a_script_runs_its_app_as_the_command_does(folder: Path, workers: int, module: bool) -> None:
    call = f'app.run(until_end=True, workers={workers}, commit_interval="100ms")'
    end = f'{GUARDED}{call}\n    print("and then")\n'
    ended = run_script(folder, end, module=module)
    assert (ended.returncode, ended.stdout) == (0, "and then\n"), ended.stderr
    assert offsets(folder / "data/log", "counts") == 200
    done("replay", "ships:app")
    sys.modules.pop("ships", None)


def test_it_ends_the_script_as_the_command_ends(folder: Path) -> None:
    ended = run_script(folder, f'{GUARDED}app.run(workers=9)\n    print("not reached")\n')
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "'ships' has 4 partitions, so at most 4 workers" in ended.stderr
    assert "Traceback" not in ended.stderr
    ended = run_script(folder, f'{GUARDED}app.run(log="elsewhere", until_end=True)\n')
    assert ended.returncode == 1
    assert "elsewhere" in ended.stderr


def test_a_call_without_guard_is_refused_before_a_worker_imports_it(folder: Path) -> None:
    ended = run_script(folder, "app.run(until_end=True)\n")
    assert ended.returncode == 1
    assert "ships.py:22 whenever the script is imported" in ended.stderr
    assert 'Put the call under if __name__ == "__main__".' in ended.stderr


REBUILD = """
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.request import Destination, Request, Source

asked = Request(app="ships:app", source=Source(log="data/log"), to=Destination(uri="made"), order="stages")
"""


def test_a_rebuild_without_guard_is_refused_before_a_process_imports_it(folder: Path) -> None:
    call = "print(rebuild(asked, LocalEngine(processes=2)).events)\n"
    ended = run_script(folder, REBUILD + call)
    assert ended.returncode == 1
    *_, error = ended.stderr.splitlines()
    assert "a process of the rebuild is started at " in error
    assert "ships.py:28 whenever the script is imported" in error
    assert error.endswith('Put the call under if __name__ == "__main__".')
    assert "multiprocessing" not in ended.stderr
    within = f'try:\n    if __name__ == "__main__":\n        {call}finally:\n    pass\n'
    for guarded in (f"{GUARDED}{call}", within):
        ended = run_script(folder, f"{REBUILD}{guarded}")
        assert (ended.returncode, ended.stdout) == (0, "200\n"), ended.stderr


def test_a_module_that_calls_it_cannot_be_imported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "hasty.py").write_text(SHIPS + "app.run()\n")
    assert execute(["run", "hasty:app"]) == 1
    assert "app.run is called while the module 'hasty' is imported" in capsys.readouterr().err


def test_workers_refuse_to_run_without_what_the_script_declares_under_its_guard(folder: Path) -> None:
    more = 'app.topic("more", Report)\n    app.run(until_end=True, create_topics=True, workers={})\n'
    ended = run_script(folder, GUARDED + more.format(2))
    assert ended.returncode == 1
    assert "has imported ships:app without the topic 'more'" in ended.stderr
    assert run_script(folder, GUARDED + more.format(1)).returncode == 0


def test_a_script_without_a_modules_name_is_refused(folder: Path) -> None:
    ended = run_script(folder, f"{GUARDED}app.run()\n", name="my-ships.py")
    assert ended.returncode == 1
    assert "my-ships.py cannot be imported as the module 'my-ships'" in ended.stderr


def test_an_app_of_no_module_is_refused() -> None:
    with pytest.raises(tr.UsageError, match="no module has it as an attribute"):
        script.reference_to(tr.App("hidden"))


def test_an_app_is_named_by_the_module_that_has_it() -> None:
    from tests.cli import shop

    assert script.reference_to(shop.app) == "tests.cli.shop:app"


def test_it_is_refused_in_a_thread() -> None:
    said: list[str] = []

    def call() -> None:
        try:
            tr.App("threaded").run()
        except tr.UsageError as error:
            said.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert said == [
        "app.run was called in a thread. Call it in the main thread, which gets the signals to stop."
    ]


def test_every_option_of_the_command_is_a_keyword_and_no_other() -> None:
    assert set(RunOptions.__annotations__) == set(script.flags())


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"until_ends": True}, tr.DefinitionError, "Did you mean 'until_end'"),
        ({"until_end": 1}, tr.UsageError, "until_end=1 is neither True nor False"),
        ({"drop_state": "Ship.calls"}, tr.UsageError, "drop_state='Ship.calls' is not a list"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: Any, error: type[Exception], said: str) -> None:
    from tests.cli import shop

    with pytest.raises(error, match=said):
        shop.app.run(**options)


def test_a_keyword_becomes_the_commands_argument() -> None:
    from tests.cli import shop

    options = {
        "log": Path("a log"),
        "until_end": True,
        "create_topics": False,
        "commit_interval": timedelta(seconds=2),
        "snapshot_every": 5_000,
        "grace": 3_000,
        "handler_warning": timedelta(seconds=4),
        "drop_state": ["A", "B.c"],
        "as_": "other",
    }
    assert script.arguments_of(shop.app, options) == [
        "run", "tests.cli.shop:app", "--log=a log", "--until-end", "--no-create-topics",
        "--commit-interval=2000ms", "--snapshot-every=5000ms", "--grace=3000ms",
        "--handler-warning=4000ms", "--drop-state=A", "--drop-state=B.c", "--as=other",
    ]  # fmt: skip
