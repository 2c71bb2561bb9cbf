"""``tailrace get``: the committed state of one key, as the harness says for the same events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.cli.commands import done, run
from tests.serve.depot import Depot
from tests.serve.stocked import DEPOT, ID, ODD, RAW, oracle, stocked


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stocked(tmp_path_factory.mktemp("get"))


def said(log: Path, *arguments: object) -> Any:
    (answer,) = done("get", DEPOT, "--json", "--log", log, *arguments).lines
    return answer


def test_an_instance_is_that_of_the_harness(log: Path) -> None:
    with oracle() as harness:
        for key in ("north", "south", "", ODD):
            kept = harness.state(Depot, key)
            assert kept is not None
            assert kept.last is not None
            answer = said(log, "Depot", key)
            fields = answer["fields"]
            assert (answer["key"], answer["actor"], answer["app"]) == (key, "Depot", "depot")
            assert fields["count"] == kept.count
            assert fields["heaviest"] == kept.heaviest
            assert fields["last"]["what"] == kept.last.what
            assert fields["lanes"] == {
                json.dumps(lane, separators=(",", ":")): [
                    {json.dumps(at, separators=(",", ":")): what for at, what in one.items()} for one in some
                ]
                for lane, some in kept.lanes.items()
            }
            assert fields["by_what"] == dict(kept.by_what.items())
            assert fields["order"] == list(kept.order)
            due = harness.timers(Depot, key)["event", "clear"]
            assert answer["timers"] == [{"domain": "event", "name": "clear", "at_ms": due}]


@pytest.mark.parametrize(
    ("actor", "key"),
    [
        ("Number", "-17"),
        ("Lane", '["JFK",-17]'),
        ("Lane", '["JFK", -17]'),
        ("Day", "2024-05-01"),
        ("Id", str(ID)),
    ],
)
def test_every_kind_of_key_has_a_form(log: Path, actor: str, key: str) -> None:
    answer = said(log, "--", actor, key)
    assert answer["fields"] == {"moves": 1}


def test_a_key_of_bytes_is_percent_encoded(log: Path) -> None:
    assert said(log, "Raw", quote(RAW, safe=""), "--percent-encoded")["fields"] == {"moves": 1}


def test_a_field_and_a_query_with_typed_arguments(log: Path) -> None:
    assert said(log, "Depot", "north", "count")["value"] == 2
    assert said(log, "Depot", "north", "by_what")["value"] == {"iron": 2.5, "tin": 5.0}
    shelves = said(log, "Depot", "north", "heavier", "than=2.4", "only=tin", "only=ash")["result"]
    assert shelves == [{"what": "tin", "weights": [5.0]}]
    assert said(log, "Depot", "north", "all_of_it")["result"] == {"iron": 2.5, "tin": 5.0}


def test_a_map_or_list_is_cut_short_and_the_answer_says_so(log: Path) -> None:
    answer = said(log, "Depot", "north", "order", "limit=1")
    assert (answer["value"], answer["cut_short"]) == (["iron"], ["order"])
    shown = done("get", DEPOT, "Depot", "north", "", "limit=1", "--log", log).out
    assert "by_what" in shown.splitlines()[-1]
    assert "order" in shown.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["Depo", "north"], "has no actor or table 'Depo'. Did you mean 'Depot'?"),
        (["Depot", "west"], "no instance of this key"),
        (["Depot", "north" * 50_000], "no instance of this key"),
        (["Number", "seventeen"], "is no key of type int"),
        (["Number", "99999999999999999999"], "is no key of type int"),
        (["Lane", '["JFK"]'], "is no key of type tuple"),
        (["Number", "true"], "is no key of type int"),
        (["Depot", "\udcff"], "is not UTF-8"),
        (["Depot", "north", "counts"], "no field or query 'counts'. Did you mean 'count'?"),
        (["Depot", "north", "heavier"], "the query 'heavier' needs the argument 'than'. Add than=…."),
        (["Depot", "north", "heavier", "than=much"], "Expected `float`"),
        (["Depot", "north", "heavier", "than=1", "than=2"], "2 times"),
        (["Depot", "north", "heavier", "thna=1"], "Did you mean 'than'?"),
        (["Depot", "north", "heavier", "than"], "write NAME=VALUE"),
        (["Depot", "north", "count", "limit=0"], "is no limit"),
        (["Depot", "north", "count", "limit=00000100099999"], "is no limit"),
        (["Depot", "north", "garbled"], "the result cannot be written as JSON"),
        (["Depot", "north", "count", "than=1"], "no argument 'than' here"),
        (["Depot", "north", "steal"], "a query changes by_what"),
        (["Depot", "north", "reset"], "the query has changed the instance"),
        (["Depot", "north", "broken"], "RuntimeError: no scales"),
    ],
)
def test_a_question_without_an_answer_says_why(log: Path, arguments: list[str], expected: str) -> None:
    ended = run("get", DEPOT, *arguments, "--log", log)
    assert ended.code != 0
    assert expected in ended.err
    assert len(ended.err) < 1_000
    assert "Traceback" not in ended.err


def test_an_app_that_has_never_run_has_no_state(tmp_path: Path) -> None:
    done("topics", "apply", "--app", DEPOT, "--log", tmp_path / "log")
    ended = run("get", DEPOT, "Depot", "north", "--log", tmp_path / "log")
    assert "has no commit" in ended.err
