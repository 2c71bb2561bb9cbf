"""``tailrace graph``: as text, as Mermaid, as JSON."""

from __future__ import annotations

import msgspec

from tests.cli.commands import SHOP, done, refused, run

LEDGER = "tests.graph.market:ledger"


def test_json_has_the_apps() -> None:
    assert msgspec.json.decode(done("graph", SHOP, "--json").out)["apps"][0]["name"] == "shop"


def test_other_tools_can_draw_it() -> None:
    assert done("graph", SHOP, "--format", "mermaid").out.startswith("flowchart LR\n")


def test_several_apps_are_one_graph() -> None:
    assert "actor Account [ledger]" in done("graph", "tests.graph.market:app", LEDGER).out


def test_an_app_is_drawn_once_and_two_of_one_name_are_refused(tmp_path, monkeypatch) -> None:
    assert done("graph", SHOP, SHOP).out == done("graph", SHOP).out
    (tmp_path / "second_shop.py").write_text("import tailrace as tr\n\napp = tr.App('shop')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert f"{SHOP} and second_shop:app are both called 'shop'" in refused("graph", SHOP, "second_shop:app")
    assert "app other-shop" in done("graph", SHOP, "second_shop:app@other-shop").out


def test_a_wrong_format_is_told_in_one_line() -> None:
    ended = run("graph", SHOP, "--format", "png")
    assert ended.code == 2
    (line,) = ended.err.splitlines()
    assert "'png' is not one of" in line
