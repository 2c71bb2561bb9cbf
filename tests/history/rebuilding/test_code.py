"""Only the same code resumes an interrupted rebuild: no state is half of one code and half of another.

The oracle is plain arithmetic over all events, by the code as it is when the rebuild ends.
"""

from __future__ import annotations

import compileall
import importlib
import sys
import textwrap
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import TailraceError
from tailrace.core.records import Output
from tailrace.history.rebuilding.code_digest import changed, code_of, differences
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding.lived import append, live_on, opened, outputs, request
from tests.history.rebuilding.struck_engines import During, Stopping

KEYS, ROUNDS = 50, 4
APP = "law_till.app:app"

PROJECT = {
    "law_till/app.py": """
        import msgspec

        import tailrace as tr
        from law_till.goods import rules


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
                from law_till.late import discount

                self.cents += rules.price(event.cents) - discount()
                ctx.emit(totals, Total(ctx.key, self.cents))
    """,
    "law_till/goods/rules.py": """
        from ..tax import PERCENT
        import law_beside


        def price(cents: int) -> int:
            return cents * (100 + PERCENT) * law_beside.SHARE
    """,
    "law_till/tax.py": "PERCENT = 20",
    "law_till/late.py": """
        def discount() -> int:
            return 5
    """,
    "law_beside.py": "SHARE = 1",
}
"""An app in a package without ``__init__.py``, and what it imports in each way."""


def write(folder: Path, modules: Mapping[str, str]) -> None:
    for name, text in modules.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(textwrap.dedent(text).lstrip("\n"))


@contextmanager
def importable(place: Path) -> Generator[None]:
    """What is in a folder or a zip can be imported; what was imported is forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        before = set(sys.modules)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            for name in set(sys.modules) - before:
                if name.startswith("law_"):
                    del sys.modules[name]


def again(folder: Path, engine: LocalEngine) -> tuple[RebuildReport, dict[str, int]]:
    """The report, and the last total of each key."""
    place, found = f"parquet:{folder / 'outputs'}", dict[str, int]()
    asked = request(folder, APP, order="stages", outputs=place)
    with importable(folder):
        report = rebuild(asked, engine)
        for one in outputs(folder / "outputs", opened(asked, report), "totals"):
            total = msgspec.json.decode(one.value or b"")
            found[total["key"]] = total["cents"]
    return report, found


def expected(percent: int = 20) -> dict[str, int]:
    """The oracle."""
    return {
        f"key-{key}": sum((key + at) * (100 + percent) - 5 for at in range(ROUNDS)) for key in range(KEYS)
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of an app that has run."""
    write(tmp_path, PROJECT)
    sold = [
        Output("sold", key.encode(), msgspec.json.encode({"key": key, "at": at, "cents": cents}), at)
        for at, key, cents in (
            (at + 1, f"key-{key}", key + at) for at in range(ROUNDS) for key in range(KEYS)
        )
    ]
    append(tmp_path, sold, {"sold": 4})
    with importable(tmp_path):
        live_on(tmp_path, APP)
    return tmp_path


def test_what_other_code_has_done_is_not_used(project: Path) -> None:
    with pytest.raises(InterruptedError):
        again(project, Stopping(2))
    write(project, {"law_till/tax.py": "PERCENT = 5"})
    report, totals = again(project, LocalEngine(1))
    assert not report.resumed
    (note,) = (note for note in report.notes if "this has changed since it was begun" in note)
    assert note.endswith(": sources law_till")
    assert totals == expected(5)


def test_the_same_code_resumes(project: Path) -> None:
    with pytest.raises(InterruptedError):
        again(project, Stopping(2))
    compileall.compile_dir(project / "law_till", quiet=2)
    write(project, {"law_till/rates.csv": "3"})
    report, totals = again(project, LocalEngine(2))
    assert report.resumed
    assert totals == expected()


def test_a_process_with_other_code_does_no_part_of_it(project: Path) -> None:
    """The code is edited between the driver's start and that of the processes that do the work."""
    said = r"the code of the app 'till' is not the same in a process of the rebuild.*sources law_till"
    edited = During(lambda _: write(project, {"law_till/tax.py": "PERCENT = 300"}), processes=2)
    with pytest.raises(TailraceError, match=said):
        again(project, edited)
    report, totals = again(project, LocalEngine(1))
    assert not report.resumed
    assert totals == expected(300)


def law_parts(folder: Path, modules: Mapping[str, str], app: str = "law_till.app") -> dict[str, str]:
    """The code of the app in this module."""
    write(folder, modules)
    with importable(folder):
        parts = code_of(f"{app}:app", find_app(f"{app}:app").plan())
        assert differences(parts) == []
        return parts


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
    assert {"sources law_till", "sources law_beside"} <= noted.keys()
    assert noted["names beside the app"] == "law_beside"


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


def test_a_module_that_is_added_beside_the_app_or_lies_in_another_folder_counts(tmp_path: Path) -> None:
    guarded = "try:\n    import law_local\nexcept ImportError:\n    pass\nimport law_elsewhere"
    write(tmp_path / "lib", {"law_elsewhere.py": "RATE = 1\n"})
    with importable(tmp_path / "lib"):
        before = law_parts(tmp_path / "app", {"law_shop.py": LAW_APP.format(guarded)}, "law_shop")
    write(tmp_path / "lib", {"law_elsewhere.py": "RATE = 100\n"})
    with importable(tmp_path / "lib"):
        after = law_parts(tmp_path / "app", {}, "law_shop")
        added = law_parts(tmp_path / "app", {"law_local.py": "RATE = 2\n"}, "law_shop")
    assert changed(before, after) == ["sources law_elsewhere"]
    assert changed(after, added) == ["names beside the app"]
