"""The app of the guide takes the rows that an import makes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.cli.commands import done, records
from tests.docs.page import ROOT, blocks
from tests.faust.test_import import write


def test_the_app_of_the_guide_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/faust.md").read_text("utf-8")
    (code,) = (one.text for one in blocks(page) if one.text.startswith("# shop.py\n"))
    (tmp_path / "shop_of_the_guide.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    folder = tmp_path / "log"
    done("topics", "apply", "--app", "shop_of_the_guide:app", "--log", folder)
    write(folder, [(1, b'"Ada"', b"3"), (2, b'"Grace"', b"1")])
    done("faust", "import", "shop_of_the_guide:app", "--from", "faust://shop/counts", "--log", folder)
    assert sorted(one.key for _, one in records(folder, "counts")) == [b"Ada", b"Grace"]
