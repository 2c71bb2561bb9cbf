"""Only the same code resumes an interrupted rebuild: no state is half of one code and half of another.

Each case is a project on disk, run in processes of its own. The oracle is plain arithmetic over all events, by the code as it is
when the rebuild ends.
"""

from __future__ import annotations

import compileall
import importlib
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.history.rebuilding.code_digest import changed, code_of
from tailrace.processes.app_loading import find_app

ROOT = Path(__file__).parents[3]
KEYS, ROUNDS = 50, 4
APP = "till.app:app"

PROJECT = {
    "till/app.py": """
        from pathlib import Path

        import msgspec

        import tailrace as tr
        from till.goods import rules


        class Sold(msgspec.Struct, frozen=True):
            key: str
            at: int
            cents: int


        class Total(msgspec.Struct, frozen=True):
            key: str
            cents: int


        app = tr.App("till", code_files=["rates.csv"])
        sold = app.topic("sold", Sold, key="key", key_type=str, event_time="at")
        totals = app.topic("totals", Total, key="key", key_type=str)


        @app.actor
        class Till(tr.Actor):
            cents: int = 0

            @tr.process(sold)
            def take(self, event: Sold, ctx: tr.Context[str]) -> None:
                from till.late import discount

                rate = int((Path(__file__).parent / "rates.csv").read_text())
                self.cents += rules.price(event.cents) * rate - discount()
                ctx.emit(totals, Total(ctx.key, self.cents))
    """,
    "till/goods/rules.py": """
        from ..tax import PERCENT
        import beside


        def price(cents: int) -> int:
            return cents * (100 + PERCENT) * beside.SHARE
    """,
    "till/tax.py": "PERCENT = 20",
    "till/late.py": """
        def discount() -> int:
            return 5
    """,
    "till/unused.py": "NOTHING = 1",
    "till/rates.csv": "1",
    "beside.py": "SHARE = 1",
    "drive.py": """
        import sys
        from pathlib import Path

        import msgspec

        from tailrace.core.records import Output
        from tailrace.log import TopicSettings
        from tailrace.log.embedded import EmbeddedLog
        from tailrace.processes.app_loading import find_app
        from tailrace.history.rebuilding.driver import rebuild
        from tailrace.history.rebuilding.engines import LocalEngine
        from tailrace.history.rebuilding.request import Destination, Execution, Request, Source
        from tailrace.runtime.host import Host
        from tailrace.runtime.options import ServiceOptions
        from tailrace.state.snapshots.arrow import parquet


        def live(keys, rounds):
            log = EmbeddedLog(Path("log"))
            log.create_topic("sold", TopicSettings(4))
            writer = log.writer("loader")
            for at in range(rounds):
                for key in range(keys):
                    event = dict(key=f"key-{key}", at=at + 1, cents=key + at)
                    writer.append([Output("sold", event["key"].encode(), msgspec.json.encode(event), at + 1)])
            writer.commit()
            log.close()
            options = ServiceOptions("till.app:app", Path("log"), Path("state"), end_of_input=True, after_end=True, create_topics=True)
            Host(options, find_app("till.app:app").plan()).run()


        class Stopped(LocalEngine):
            def run(self, units, tell):
                yield from super().run(units[: len(units) // 2], tell)
                raise InterruptedError


        class Edited(LocalEngine):
            def run(self, units, tell):
                find_app("till.app:app")
                Path("till/tax.py").write_text("PERCENT = 300")
                yield from super().run(units, tell)


        def again(engine, split):
            asked = Request(
                app="till.app:app",
                source=Source(log="log"),
                to=Destination(uri="made", outputs="parquet:outputs"),
                execution=Execution(split=split),
            )
            report = rebuild(asked, engine)
            totals = {}
            for place in sorted((Path("outputs") / "till" / report.snapshot).glob("*.parquet")):
                for row in parquet.read_table(place).to_pylist():
                    said = msgspec.json.decode(row["value"])
                    totals[said["key"]] = said["cents"]
            done = dict(resumed=report.resumed, notes=report.notes, totals=totals)
            sys.stdout.write(msgspec.json.encode(done).decode())


        if __name__ == "__main__":
            what, split = sys.argv[1], int(sys.argv[2])
            if what == "live":
                live(int(sys.argv[3]), int(sys.argv[4]))
            elif what == "stopped":
                again(Stopped(1), split)
            elif what == "edited":
                again(Edited(2), split)
            else:
                for name in sys.argv[3:]:
                    __import__(name)
                again(LocalEngine(1), split)
    """,
}
"""An app in a package without ``__init__.py``, what it imports in each way, a data file, and a program that drives it."""


class Done(msgspec.Struct):
    resumed: bool
    notes: list[str]
    totals: dict[str, int]


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in PROJECT.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(textwrap.dedent(text).lstrip("\n"))

    def drive(
        self, what: str, split: int = 1, *more: object, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folder), str(ROOT / "framework")])
        return subprocess.run(
            [sys.executable, "drive.py", what, str(split), *map(str, more)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def parts(self, name: str, path: Path) -> dict[str, str]:
        """The code of the app where it is found in ``path``; written to a file of that name."""
        said = self._python(f"code_of({APP!r}, find_app({APP!r}).plan())", path)
        if name:
            (self.folder / name).write_text(said)
        return msgspec.json.decode(said, type=dict[str, str])

    def compared(self, name: str, path: Path) -> list[str]:
        """What of the code that was written is another where the app is found in ``path``."""
        noted = msgspec.json.decode((self.folder / name).read_bytes(), type=dict[str, str])
        return sorted(
            msgspec.json.decode(self._python(f"differences({APP!r}, {noted!r})", path), type=list[str])
        )

    def _python(self, expression: str, path: Path) -> str:
        program = (
            "import json\nfrom tailrace.processes.app_loading import find_app\n"
            "from tailrace.history.rebuilding.code_digest import code_of, differences\n"
            f"find_app({APP!r})\nprint(json.dumps({expression}))"
        )
        return subprocess.run(
            [sys.executable, "-B", "-c", program],
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT / "framework")])},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        ).stdout

    def interrupted(self, split: int = 1) -> None:
        ended = self.drive("stopped", split)
        assert "InterruptedError" in ended.stderr, ended.stderr

    def again(self, split: int = 1, *more: str, **environment: str) -> Done:
        ended = self.drive("again", split, *more, **environment)
        assert ended.returncode == 0, ended.stderr
        return msgspec.json.decode(ended.stdout, type=Done)


def expected(*, percent: int = 20, share: int = 1, less: int = 5, rate: int = 1) -> dict[str, int]:
    """The oracle."""
    found: dict[str, int] = {}
    for at in range(ROUNDS):
        for key in range(KEYS):
            cents = (key + at) * (100 + percent) * share * rate - less
            found[f"key-{key}"] = found.get(f"key-{key}", 0) + cents
    return found


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose app has run."""
    made = Project(tmp_path_factory.mktemp("lived"))
    ended = made.drive("live", 1, KEYS, ROUNDS)
    assert ended.returncode == 0, ended.stderr
    return made.folder


@pytest.fixture
def project(lived: Path, tmp_path: Path) -> Project:
    shutil.copytree(lived, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "part", "now", "split"),
    [
        ("till/tax.py", "PERCENT = 30", "module till.tax", {"percent": 30}, 2),
        ("beside.py", "SHARE = 2", "module beside", {"share": 2}, 1),
        ("till/late.py", "def discount() -> int:\n    return 6", "module till.late", {"less": 6}, 1),
        ("till/rates.csv", "3", "file rates.csv", {"rate": 3}, 1),
        ("till/tax.py", "PERCENT = 20  # at all", "module till.tax", {}, 1),
    ],
)
def test_what_other_code_has_done_is_not_used(
    project: Project, name: str, text: str, part: str, now: dict[str, Any], split: int
) -> None:
    """A helper of the package, a module beside it, one that is imported when a handler is called, a data file, a comment."""
    project.interrupted(split)
    project.write(name, text)
    done = project.again(split)
    assert not done.resumed
    assert [note for note in done.notes if f"the code has changed since it was begun: {part}" in note]
    assert done.totals == expected(**now)


def test_the_same_code_resumes_whatever_was_imported_and_whatever_the_hash_seed_is(project: Project) -> None:
    project.interrupted()
    project.write("till/unused.py", "NOTHING = 2")
    compileall.compile_dir(project.folder / "till", quiet=2)
    done = project.again(1, "till.unused", "till.late", "beside", PYTHONHASHSEED="7")
    assert done.resumed
    assert done.totals == expected()


def test_a_zip_of_the_project_is_the_same_code_in_another_process(project: Project, tmp_path: Path) -> None:
    """As Spark ships it to its workers: another place, a zip, and nothing imported yet but the app."""
    noted = project.parts("noted.json", project.folder)
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as zipped:
        till = project.folder / "till"  # the folder itself, too: a package without __init__.py needs it
        for place in [till, *till.rglob("*"), project.folder / "beside.py"]:
            zipped.write(place, place.relative_to(project.folder))
    assert project.parts("", packed) == noted
    assert project.compared("noted.json", packed) == []
    project.write("till/late.py", "def discount() -> int:\n    return 6")
    project.write("till/rates.csv", "2")
    assert project.compared("noted.json", project.folder) == ["file rates.csv", "module till.late"]


def test_a_process_with_other_code_does_no_part_of_it(project: Project) -> None:
    """The code is edited between the driver's start and that of the processes that do the work."""
    ended = project.drive("edited")
    assert ended.returncode != 0
    assert "the code of the app 'till' is not the same in a process of the rebuild" in ended.stderr
    assert "module till.tax" in ended.stderr
    done = project.again()
    assert not done.resumed
    assert done.totals == expected(percent=300)


def test_a_named_file_that_is_not_there_is_told_before_anything_is_begun(project: Project) -> None:
    (project.folder / "till" / "rates.csv").unlink()
    ended = project.drive("again")
    assert "'rates.csv', which the app names as a part of its code, cannot be read" in ended.stderr
    assert not (project.folder / "made").exists()


def law_parts(folder: Path, modules: Mapping[str, str]) -> dict[str, str]:
    """The code of the app in ``law_till.app``, without processes."""
    for name, text in modules.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        before = set(sys.modules)
        importlib.invalidate_caches()
        try:
            return code_of("law_till.app:app", find_app("law_till.app:app").plan())
        finally:
            for name in set(sys.modules) - before:
                if name.startswith("law_"):
                    del sys.modules[name]


LAW_APP = "import tailrace as tr\n{}\napp = tr.App('till', partitions=1)\n"


def check_that_a_helper_counts(folder: Path) -> None:
    """A module that the app's own one imports is a part of its code."""
    before = law_parts(
        folder, {"law_till/app.py": LAW_APP.format("import law_rate"), "law_rate.py": "RATE = 1\n"}
    )
    after = law_parts(folder, {"law_rate.py": "RATE = 100\n"})
    assert changed(before, after) == ["module law_rate"]


def test_a_helper_counts(tmp_path: Path) -> None:
    check_that_a_helper_counts(tmp_path)


@pytest.mark.parametrize(
    ("statement", "counted"),
    [
        ("", set[str]()),
        ("import law_till.rates.day", {"law_till.rates", "law_till.rates.day", "law_till.shared"}),
        ("from .rates import day as of", {"law_till.rates", "law_till.rates.day", "law_till.shared"}),
        ("from .rates import *", {"law_till.rates", "law_till.rates.day", "law_till.shared"}),
        ("def late():\n    from . import shared", {"law_till.shared"}),
        ("def late():\n    if late: import msgspec, law_beside as other", {"law_beside"}),
        (
            "def late(name):\n    import importlib\n    importlib.import_module(name)",
            {"law_till.rates", "law_till.rates.day", "law_till.shared", "law_till.broken"},
        ),
        (
            "from importlib import import_module as load\ndef late(name):\n    load(name)",
            {"law_till.rates", "law_till.rates.day", "law_till.shared", "law_till.broken"},
        ),
        (
            "def late():\n    from . import broken",
            {"law_till.rates", "law_till.rates.day", "law_till.shared", "law_till.broken"},
        ),
    ],
)
def test_every_module_that_can_run_counts_and_no_other(
    tmp_path: Path, statement: str, counted: set[str]
) -> None:
    modules = {
        "law_till/app.py": LAW_APP.format(statement),
        "law_till/rates/__init__.py": "from law_till import shared",
        "law_till/rates/day.py": "RATE = 1",
        "law_till/shared.py": "import json",
        "law_till/broken.py": "what it imports cannot be seen",
        "law_beside.py": "",
    }
    found = {
        part.removeprefix("module ") for part in law_parts(tmp_path, modules) if part.startswith("module ")
    }
    assert found == {"law_till.app", *counted}
