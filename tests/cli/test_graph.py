"""``tailrace graph``: as text, as Mermaid, as JSON."""

from __future__ import annotations

import msgspec
import pytest

from tests.cli.commands import SHOP, done, run

LEDGER = "tests.graph.market:ledger"


def test_the_suffix_of_the_output_says_what_is_written(tmp_path) -> None:
    done("graph", SHOP, "--output", tmp_path / "a.json")
    done("graph", SHOP, "--output", tmp_path / "a.txt")
    assert msgspec.json.decode((tmp_path / "a.json").read_bytes())["apps"][0]["name"] == "shop"
    assert (tmp_path / "a.txt").read_text() == done("graph", SHOP).out


def test_json_is_a_format_too() -> None:
    assert done("graph", SHOP, "--json").out == done("graph", SHOP, "--format", "json").out


def test_other_tools_can_draw_it(tmp_path) -> None:
    done("graph", SHOP, "--output", tmp_path / "a.mmd")
    assert (tmp_path / "a.mmd").read_text() == done("graph", SHOP, "--format", "mermaid").out
    assert (tmp_path / "a.mmd").read_text().startswith("flowchart LR\n")


def test_several_apps_are_one_graph() -> None:
    assert "actor Account [ledger]" in done("graph", "tests.graph.market:app", LEDGER).out


def test_an_app_is_drawn_once_and_two_of_one_name_are_refused(tmp_path, monkeypatch) -> None:
    assert done("graph", SHOP, SHOP).out == done("graph", SHOP).out
    (tmp_path / "second_shop.py").write_text("import tailrace as tr\n\napp = tr.App('shop')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ended = run("graph", SHOP, "second_shop:app")
    assert ended.code == 2
    assert f"{SHOP} and second_shop:app are both called 'shop'" in ended.err
    assert "app other-shop" in done("graph", SHOP, "second_shop:app@other-shop").out


def test_a_suffix_that_says_nothing_is_refused_and_nothing_is_written(tmp_path) -> None:
    ended = run("graph", SHOP, "--output", tmp_path / "a.png")
    assert ended.code == 2
    assert "names no format: use .json, .mmd, .txt, or give --format" in ended.err
    assert not (tmp_path / "a.png").exists()
    done("graph", SHOP, "--output", tmp_path / "a.png", "--format", "text")
    assert (tmp_path / "a.png").read_text() == done("graph", SHOP).out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([SHOP, "--format", "png"], 2, "'png' is not one of"),
        (
            [SHOP, "--output", "/no/such/folder/a.mmd"],
            1,
            "'/no/such/folder/a.mmd' cannot be written: No such file",
        ),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments, code, said) -> None:
    ended = run("graph", *arguments)
    assert ended.code == code
    (line,) = ended.err.splitlines()
    assert said in line
