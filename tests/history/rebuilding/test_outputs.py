"""Outputs of a rebuild are those of the service: same bytes, same numbers, each once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.output_files import MANIFEST, OutputsManifest
from tests.history.rebuilding import lived, shops
from tests.history.rebuilding.lived import done, request


@pytest.fixture
def tally(tmp_path: Path) -> Path:
    for first in range(3):
        lived.serve_tallies(tmp_path, 20, 1, first_round=first)
    return tmp_path


def test_refused_records_are_not_counted_as_replayed_and_have_the_letters_of_the_service(
    tmp_path: Path,
) -> None:
    app, bad = "tests.history.rebuilding.shops:lenient", [Output("sales", b"b", b"no sale", 0)] * 3
    lived.append(tmp_path, [*shops.sales(40), *bad], {"sales": 2})
    lived.live_on(tmp_path, app)
    letters = [one.headers for one in lived.read(tmp_path, "shops.dead-letters")]
    report, snapshot = done(tmp_path, app, outputs=f"parquet:{tmp_path / 'out'}")
    assert (report.events, report.replayed, report.refused) == (40, 40, 3)
    assert report.notes == []
    written = lived.outputs(tmp_path / "out", snapshot, "shops.dead-letters")
    assert [one.headers for one in written] == letters


def test_a_driver_killed_while_it_names_the_files_leaves_nothing_about_for_who_goes_on(
    tally: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(path: Path, target: Path) -> Path:
        if target.name == MANIFEST:
            raise Killed
        return replace(path, target)

    asked, replace = request(tally, outputs=f"parquet:{tally / 'out'}"), Path.replace
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Path, "replace", killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # nobody is left to do it
        rebuild(asked, LocalEngine(1))
    (folder,) = (tally / "out" / "tally").iterdir()
    before = {one.name for one in folder.iterdir()}
    assert MANIFEST not in before
    assert any(MANIFEST in name for name in before), "it died elsewhere"
    assert rebuild(asked, LocalEngine(1)).resumed
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=OutputsManifest)
    assert {one.name for one in folder.iterdir()} == {MANIFEST, *(one.name for one in manifest.files)}
