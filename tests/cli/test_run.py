"""``tailrace run``: its arguments, and how it ends."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from tailrace.cli.main import execute
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime import supervisor
from tests.cli import stumbles
from tests.cli.commands import TO_THE_END, done
from tests.runtime.processes import Running
from tests.runtime.served import make_app
from tests.runtime.tallies import check_all, ticks

APP = "tests.runtime.served:app"
STUMBLES = "tests.cli.stumbles:app"


pytestmark = pytest.mark.usefixtures("quiet_logs")


def test_the_version_is_told(capsys) -> None:
    assert execute(["--version"]) == 0
    assert capsys.readouterr().out == f"tailrace, version {version('tailrace')}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere:app"], "there is no module 'nowhere'"),
        (["tests.runtime.nowhere:app"], "there is no module 'tests.runtime.nowhere'"),
        (["tests.runtime.served.py:app"], "Write 'tests.runtime.served', without the suffix of its file."),
        (["tests.runtime.served"], "names no app. Write the module and the app in it: package.module:app"),
        (["a file.py:app"], "names no app"),
        (["tests.runtime.served:ap"], "has no 'ap'. Did you mean 'app'? There is tests.runtime.served:app"),
        (["tests.runtime.served:AUDITORS"], "is of type int, and no app"),
        ([APP, "--workers", "many"], "'many' is not a valid integer"),
        ([APP, "--workers", "5"], "4 partitions, so at most 4 workers"),
        (
            [APP, "--commit-interval", "soon"],
            "'soon' is not a duration. Write for example 500ms, 1s, 30m, 1h30m or 7d.",
        ),
        ([APP, "--commit-interval", "0s"], "it must be at least 1ms."),
        ([APP, "--commit-interval", "300000000d"], "is longer than 100000d"),
        ([APP, "--handler-warning", "0s"], "it must be at least 10ms."),
        ([APP, "--grace", "0s"], "it must be at least 100ms."),
        ([APP, "--snapshot-every", "0s"], "it must be at least 1000ms."),
        ([APP, "--log", "data", "--state", "data"], "is in the log's folder"),
        ([APP, "--log", "data", "--snapshots", "data/snapshots"], "is in the log's folder"),
        ([APP, "--snapshots", ""], "--snapshots: it is empty"),
        ([APP, "--snapshot-every", "10m"], "--snapshot-every goes with --snapshots"),
        ([APP, "--snapshot-keep", "3"], "--snapshot-keep goes with --snapshots"),
        ([APP, "--as", "tally"], "'tally' is already the name of tests.runtime.served:app"),
        (["tests/cli/shop.py"], "names no app. Did you mean 'tests.cli.shop:app'?"),
        (["./nowhere.py:app"], "names no app. Write the module and the app in it: package.module:app"),
    ],
)
def test_a_command_that_cannot_be_understood_is_told_why_in_one_line(
    arguments, said, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert line.startswith("tailrace: ")


def test_snapshots_that_could_not_be_taken_are_refused_before_the_service_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arguments = ("--log", str(tmp_path / "log"), "--create-topics", "--end-of-input", "--after-end")
    assert execute(["run", APP, *arguments, "--snapshots", str(tmp_path / "snapshots")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pyarrow, which is not installed. pip install 'tailrace[parquet]'" in line
    assert not (tmp_path / "log").exists()


@pytest.mark.long
def test_a_bounded_run_ends_if_its_workers_die_whenever_they_start(tmp_path: Path) -> None:
    arguments = ("--log", tmp_path / "log", "--state", tmp_path / "state", "--create-topics", "--workers", 2)
    with Running("run", "tests.cli.dies:app", *arguments, "--until-end") as service:
        assert service.ended() == 1
    assert "died with exit code 7 at each of 5 starts. See its messages above." in service.text()


def test_a_bounded_run_goes_on_if_a_worker_dies_at_work_however_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUMBLES", str(tmp_path / "ends"))
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.01)
    where = ("--log", str(tmp_path / "log"))
    assert execute(["topics", "apply", "--app", STUMBLES, *where]) == 0
    with closing(EmbeddedLog(tmp_path / "log", create=False)) as log:
        log.append_all([Output("steps", b"ann", msgspec.json.encode({"who": "ann", "at_ms": 1}), 1)])
    arguments = ("--state", str(tmp_path / "state"), "--workers", "2", "--until-end")
    assert execute(["run", STUMBLES, *where, *arguments]) == 0
    assert (tmp_path / "ends").stat().st_size == stumbles.ENDS
    (said,) = done("get", STUMBLES, "Walker", "ann", "walked", "--json", *where).lines
    assert said["value"] == 1


BEFORE = """
import tailrace as tr
from tests.cli.shop import Purchase

app = tr.App("counts", partitions=1)
purchases = app.topic("purchases", Purchase, key="customer", key_type=str, event_time="at_ms")


@app.actor
class Customer(tr.Actor):
    notes: tr.MapState[str, int]

    @tr.process(purchases)
    def bought(self, purchase: Purchase, ctx: tr.Context[str]) -> None:
        self.notes[purchase.note] = 1


@app.actor
class Former(tr.Actor):
    cents: int = 0

    @tr.process(purchases)
    def bought(self, purchase: Purchase, ctx: tr.Context[str]) -> None:
        self.cents += 1
"""


def test_what_is_kept_though_undeclared_is_named_and_so_is_what_cannot_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counts_before.py").write_text(BEFORE)
    (tmp_path / "counts_after.py").write_text(BEFORE.partition("\n\n@app.actor\nclass Former")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    where = (*folders(tmp_path), *TO_THE_END)
    done("topics", "apply", "--app", "counts_before:app", "--log", tmp_path / "log")
    append = ("log", "append", "purchases", "--app", "counts_before:app", "--log", tmp_path / "log")
    done(*append, stdin=b'{"customer": "a", "at_ms": 1, "cents": 2, "note": "x"}')
    done("run", "counts_before:app", *where)

    def said(*more: str) -> list[dict[str, object]]:
        """What is logged of state that nothing declares."""
        lines = map(json.loads, done("run", "counts_after:app", *where, *more).err.splitlines())
        return [line for line in lines if {"kept", "drop"} & line.keys()]

    (kept,) = said()
    assert (kept["level"], kept["kept"]) == ("warning", ["Former"])
    unknown, kept = sorted(said("--drop-state", "Fromer"), key=lambda line: "kept" in line)
    assert (unknown["level"], unknown["drop"], unknown["undeclared"]) == ("warning", ["Fromer"], ["Former"])
    assert kept["kept"] == ["Former"]
    assert said("--drop-state", "Former") == []
    (gone,) = said("--drop-state", "Former")
    assert (gone["level"], gone["drop"], gone["undeclared"]) == ("warning", ["Former"], [])
    assert said() == []


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("broken_service", "app = 1 / 0", "ZeroDivisionError: division by zero at"),
        ("needy_service", "import a_module_that_nobody_has", "No module named 'a_module_that_nobody_has'"),
        ("leaving_service", "raise SystemExit(3)", "ends the program when it is imported: SystemExit: 3 at "),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_its_place(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    line: str,
    said: str,
) -> None:
    (tmp_path / f"{name}.py").write_text(f"import json\n\n{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert execute(["run", f"{name}:app"]) == 2
    (found,) = capsys.readouterr().err.splitlines()
    assert said in found
    assert f"{name}.py:3" in found


def test_a_declaration_that_makes_no_sense_is_told_as_it_is(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "odd_service.py").write_text("import tailrace as tr\napp = tr.App('odd', partitions=0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert execute(["run", "odd_service:app"]) == 1
    assert "partitions=0" in capsys.readouterr().err
    sys.modules.pop("odd_service", None)


def folders(at: Path) -> list[str]:
    return ["--log", str(at / "log"), "--state", str(at / "state"), "--log-format", "json"]


def test_a_log_that_is_not_there_is_not_made_by_mistake(tmp_path: Path, capsys) -> None:
    assert execute(["run", APP, *folders(tmp_path), "--end-of-input", "--after-end"]) == 1
    assert "there is no log" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_topics_that_are_not_there_are_named_and_made_when_asked_for(tmp_path: Path, capsys) -> None:
    EmbeddedLog(tmp_path / "log").close()
    assert execute(["run", APP, *folders(tmp_path), "--end-of-input", "--after-end"]) == 1
    assert "no topic 'audits' and no 'counts'" in capsys.readouterr().err
    assert execute(["run", APP, *folders(tmp_path), "--end-of-input", "--after-end", "--create-topics"]) == 0
    assert "traceback" not in capsys.readouterr().err


def test_end_of_input_does_all_there_is_and_leaves(tmp_path: Path) -> None:
    assert execute(["run", APP, *folders(tmp_path), "--until-end", "--create-topics"]) == 0
    log = EmbeddedLog(tmp_path / "log")
    log.append_all(ticks(10, 10))
    assert execute(["run", APP, *folders(tmp_path), "--end-of-input"]) == 0
    check_all(log, 10, 10)
    assert execute(["run", APP, *folders(tmp_path), "--end-of-input"]) == 0
    check_all(log, 10, 10)
    log.close()


def test_an_app_of_another_width_is_refused_with_the_mend(tmp_path: Path, capsys, monkeypatch) -> None:
    assert execute(["run", APP, *folders(tmp_path), "--end-of-input", "--after-end", "--create-topics"]) == 0
    monkeypatch.setattr("tests.runtime.served.app", make_app(2))
    assert execute(["run", APP, *folders(tmp_path), "--end-of-input", "--after-end"]) == 1
    assert "partitions is 4, and must be 2" in capsys.readouterr().err


def test_the_command_runs_as_a_module(tmp_path: Path) -> None:
    with Running("run", APP, *folders(tmp_path), *TO_THE_END, "--create-topics") as process:
        assert process.ended() == 0, process.lines
        assert [one["message"] for one in process.logged][-1] == "left"
    with Running("run", "nowhere:app") as process:
        assert process.ended() == 2
        assert process.complaint.startswith("tailrace: there is no module 'nowhere'")
