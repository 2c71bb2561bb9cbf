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
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from tailrace.history.rebuilding.code_digest import changed, code_of, differences
from tailrace.processes.app_loading import find_app

ROOT = Path(__file__).parents[3]
KEYS, ROUNDS = 50, 4
APP = "till.app:app"

PROJECT = {
    "till/app.py": """
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


        app = tr.App("till")
        sold = app.topic("sold", Sold, key="key", key_type=str, event_time="at")
        totals = app.topic("totals", Total, key="key", key_type=str)


        @app.actor
        class Till(tr.Actor):
            cents: int = 0

            @tr.process(sold)
            def take(self, event: Sold, ctx: tr.Context[str]) -> None:
                from till.late import discount

                self.cents += rules.price(event.cents) - discount()
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
        from tailrace.history.rebuilding.request import Destination, Request, Source
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


        def again(engine):
            asked = Request(
                app="till.app:app",
                source=Source(log="log"),
                to=Destination(uri="made", outputs="parquet:outputs"),
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
            what = sys.argv[1]
            if what == "live":
                live(int(sys.argv[2]), int(sys.argv[3]))
            else:
                again({"stopped": Stopped, "edited": Edited, "again": LocalEngine}[what](2))
    """,
}
"""An app in a package without ``__init__.py``, what it imports in each way, and a program that drives it."""


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

    def drive(self, what: str, *more: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(self.folder / "drive.py"), what, *map(str, more)],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT / "framework")]),
                "PYTHONDONTWRITEBYTECODE": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def interrupted(self) -> None:
        ended = self.drive("stopped")
        assert "InterruptedError" in ended.stderr, ended.stderr

    def again(self, **environment: str) -> Done:
        ended = self.drive("again", **environment)
        assert ended.returncode == 0, ended.stderr
        return msgspec.json.decode(ended.stdout, type=Done)


def expected(percent: int = 20) -> dict[str, int]:
    """The oracle."""
    found: dict[str, int] = {}
    for at in range(ROUNDS):
        for key in range(KEYS):
            found[f"key-{key}"] = found.get(f"key-{key}", 0) + (key + at) * (100 + percent) - 5
    return found


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose app has run."""
    made = Project(tmp_path_factory.mktemp("lived"))
    ended = made.drive("live", KEYS, ROUNDS)
    assert ended.returncode == 0, ended.stderr
    return made.folder


@pytest.fixture
def project(lived: Path, tmp_path: Path) -> Project:
    shutil.copytree(lived, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)


def test_what_other_code_has_done_is_not_used(project: Project) -> None:
    project.interrupted()
    project.write("till/tax.py", "PERCENT = 30")
    done = project.again()
    assert not done.resumed
    (note,) = (note for note in done.notes if "the code has changed since it was begun" in note)
    assert note.endswith(": sources till")
    assert done.totals == expected(30)


def test_the_same_code_resumes(project: Project) -> None:
    project.interrupted()
    compileall.compile_dir(project.folder / "till", quiet=2)
    project.write("till/rates.csv", "3")
    done = project.again(PYTHONHASHSEED="7")
    assert done.resumed
    assert done.totals == expected()


def test_a_process_with_other_code_does_no_part_of_it(project: Project) -> None:
    """The code is edited between the driver's start and that of the processes that do the work."""
    ended = project.drive("edited")
    assert ended.returncode != 0
    assert "the code of the app 'till' is not the same in a process of the rebuild" in ended.stderr
    assert "sources till" in ended.stderr
    done = project.again()
    assert not done.resumed
    assert done.totals == expected(300)


def law_parts(folder: Path, modules: Mapping[str, str], app: str = "law_till.app") -> dict[str, str]:
    """The code of the app in this module, without processes."""
    for name, text in modules.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        before = set(sys.modules)
        importlib.invalidate_caches()
        try:
            parts = code_of(f"{app}:app", find_app(f"{app}:app").plan())
            assert differences(parts) == []
            return parts
        finally:
            for name in set(sys.modules) - before:
                if name.startswith("law_"):
                    del sys.modules[name]


LAW_APP = "import tailrace as tr\n{}\napp = tr.App('till', partitions=1)\n"


def test_a_helper_counts(tmp_path: Path) -> None:
    """A module that the app's own one imports is a part of its code."""
    modules = {"law_till/app.py": LAW_APP.format("import law_rate"), "law_rate.py": "RATE = 1\n"}
    before = law_parts(tmp_path, modules)
    after = law_parts(tmp_path, {"law_rate.py": "RATE = 100\n"})
    assert changed(before, after) == ["sources law_rate"]


def test_a_moved_checkout_and_a_zip_are_the_same_code(tmp_path: Path) -> None:
    """Spark ships a zip to its workers."""
    modules = {
        "law_till/app.py": LAW_APP.format("import law_beside\nfrom law_till.goods import rules"),
        "law_till/goods/rules.py": "from ..tax import PERCENT\n",
        "law_till/tax.py": "PERCENT = 20\n",
        "law_beside.py": "",
    }
    noted = law_parts(tmp_path / "here", modules)
    assert law_parts(tmp_path / "moved", modules) == noted
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as zipped:
        for place in (tmp_path / "moved").rglob("*"):  # folders, too: law_till has no __init__.py
            zipped.write(place, place.relative_to(tmp_path / "moved"))
    assert law_parts(packed, {}) == noted
    assert {"sources law_till", "sources law_beside"} == {
        part for part in noted if part.startswith("sources ")
    }


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("law_till/rates/day.py", "RATE = 2\n", ["sources law_till"]),  # nothing has imported it
        ("law_till/app.py", LAW_APP.format("import law_beside  # a comment"), ["sources law_till"]),
        ("law_till/more.py", "", ["sources law_till"]),
        ("law_till/rates.csv", "2", []),
        ("law_beside/rules.py", "", ["sources law_beside"]),
        ("law_unused.py", "RATE = 2\n", []),
    ],
)
def test_every_source_below_the_packages_that_are_loaded_counts(
    tmp_path: Path, name: str, text: str, parts: list[str]
) -> None:
    modules = {
        "law_till/app.py": LAW_APP.format("import law_beside"),
        "law_till/rates/day.py": "RATE = 1\n",
        "law_beside/__init__.py": "",
        "law_unused.py": "RATE = 1\n",
    }
    assert changed(law_parts(tmp_path, modules), law_parts(tmp_path, {name: text})) == parts


@pytest.mark.parametrize(("folder", "parts"), [("scripts", ["sources law_rate"]), ("site-packages", [])])
def test_of_a_script_in_a_folder_the_modules_count_that_it_imports_unless_packages_are_installed_there(
    tmp_path: Path, folder: str, parts: list[str]
) -> None:
    place = tmp_path / folder
    modules = {"law_till.py": LAW_APP.format("import law_rate"), "law_rate.py": "", "law_other.py": ""}
    before = law_parts(place, modules, "law_till")
    after = law_parts(place, {"law_rate.py": "RATE = 1\n", "law_other.py": "RATE = 1\n"}, "law_till")
    assert changed(before, after) == parts


def test_the_versions_of_what_is_installed_count_and_a_worker_compares_what_it_has(tmp_path: Path) -> None:
    before = law_parts(tmp_path, {"law_till/app.py": LAW_APP.format("")})
    assert before["package msgspec"] == metadata.version("msgspec")
    other = {"package msgspec": "0.1", "package pip": "0.1", "package not-here": "1", "sources not_here": "1"}
    assert changed(before, before | other) == ["package msgspec", "package not-here", "package pip"]
    assert differences(other) == ["package msgspec"]  # pip is not loaded
