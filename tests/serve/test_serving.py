"""Answers over HTTP, from a follower of its own: what ``tailrace get`` says of the same log, and nothing that is not committed."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tailrace.log.embedded import EmbeddedLog
from tests.cli.commands import done
from tests.runtime.processes import wait_until
from tests.serve.asking import Asked, serving
from tests.serve.depot import DAY, Arrival, app, arrivals
from tests.serve.stocked import DEPOT, ODD, RAW, append, run_on, stocked


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stocked(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def server(log: Path) -> Any:
    with serving(log) as asked:
        asked.until_ready()
        yield asked


def written(key: str | bytes) -> str:
    return quote(key, safe="")


@pytest.mark.parametrize("key", ["north", "south", "", ODD])
def test_an_answer_is_that_of_get_at_the_same_offset(log: Path, server: Asked, key: str) -> None:
    (told,) = done("get", DEPOT, "Depot", key, "--json", "--log", log).lines
    said = server.ask(f"/actors/Depot/{written(key)}")
    assert said.status == 200
    for name in ("age_ms", "judged_at_ms"):
        told.pop(name), said.body.pop(name)
    assert said.body == told


def test_fields_queries_and_binary_keys(server: Asked) -> None:
    assert server.ask("/actors/Depot/north/count").body["value"] == 2
    assert server.ask("/actors/Depot/north/order?limit=1").body["cut_short"] == ["order"]
    assert server.ask("/actors/Depot/north/heavier?than=2.4&only=tin&most=5").body["result"] == [
        {"what": "tin", "weights": [5.0]}
    ]
    assert server.ask(f"/actors/Raw/{written(RAW)}/moves").body["value"] == 1
    assert server.ask("/actors/Number/-17/moves").body["value"] == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/actors/Depot", 404),
        ("/actors/Depott/north", 404),
        ("/actors/Depot/west", 404),
        ("/actors/Depot/north/nothing", 404),
        ("/actors/Depot/north/_tr_key", 404),
        ("/actors/Depot/north/__class__", 404),
        ("/actors/Depot/../../etc/passwd", 404),
        ("/actors/Depot/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404),
        ("/actors/%00/%00", 404),
        ("/actors/Depot/%ff", 400),
        ("/actors/Depot/" + "k" * 50_000, 404),
        ("/actors/Number/one", 400),
        ("/actors/Number/99999999999999999999999", 400),
        ("/actors/Depot/north/heavier", 400),
        ("/actors/Depot/north/heavier?than=%ff", 400),
        ("/actors/Depot/north/heavier?than=NaN&" + "&".join(f"a{n}=1" for n in range(200)), 400),
        ("/actors/Depot/north/steal", 500),
        ("/actors/Depot/north/reset", 500),
        ("/actors/Depot/north/broken", 500),
        ("/actors/Depot/north/garbled", 500),
        ("/actors/Depot/north/order?limit=0000000000010000", 400),
        ("/actors/Number/true", 400),
        ("/nothing", 404),
    ],
)
def test_a_question_without_an_answer_gets_its_status_and_a_reason(
    server: Asked, path: str, status: int
) -> None:
    said = server.ask(path)
    assert said.status == status
    if path.startswith("/actors"):
        assert said.body["status"] == status
        assert len(said.body["error"]) < 1_000
    assert server.ask("/actors/Depot/north/count").body["value"] == 2, "it has changed nothing"


def test_only_get_and_head_ask(server: Asked) -> None:
    said = server.ask("/actors/Depot/north", "DELETE")
    assert (said.status, said.headers["allow"]) == (405, "GET, HEAD")
    assert server.ask("/actors/Depot/north", "HEAD").status == 200


def test_clients_that_are_slow_or_hang_up_hold_nobody_up(server: Asked) -> None:
    """A thousand connections, a third of them with half a question, a third gone."""
    address = ("127.0.0.1", server.port)
    held = []
    try:
        for number in range(1_000):
            one = socket.create_connection(address, timeout=60)
            if number % 3:
                one.sendall(b"GET /actors/Depot/north/count HT")
            if number % 3 == 2:
                one.close()
            else:
                held.append(one)
        assert server.ask("/actors/Depot/north/count").body["value"] == 2
    finally:
        for one in held:
            one.close()


def test_the_description_names_every_question_with_its_types(server: Asked) -> None:
    described = server.ask("/openapi.json").body
    assert described["openapi"].startswith("3.1")
    paths = described["paths"]
    assert {f"/actors/{one.name}/{{key}}" for one in app.plan().actors} <= set(paths)
    asked = paths["/actors/Depot/{key}/heavier"]["get"]
    assert asked["summary"] == "What is heavier than this."
    parameters = {one["name"]: one for one in asked["parameters"]}
    assert parameters["than"]["required"]
    assert parameters["than"]["schema"] == {"type": "number"}
    assert parameters["most"]["schema"] == {"type": "integer", "default": 10}
    assert "Shelf" in described["components"]["schemas"]


def test_later_commits_are_answered_and_what_is_not_committed_is_not(tmp_path: Path) -> None:
    log = stocked(tmp_path)
    with serving(log) as asked:
        asked.until_ready()
        before = asked.ask("/actors/Depot/north").body
        append(log, [(arrivals, Arrival("north", DAY + timedelta(hours=1), "zinc", 1.0))])
        run_on(log, tmp_path / "state")
        wait_until(
            lambda: asked.ask("/actors/Depot/north/count").body["value"] == 3, "the commit is answered"
        )
        after = asked.ask("/actors/Depot/north").body
        assert after["offset"] > before["offset"]
        assert after["fields"]["last"]["what"] == "zinc"
        assert after["age_ms"] < 5_000


def test_partitions_are_shared_and_another_s_is_refused_with_the_reason(log: Path) -> None:
    with serving(log, [0]) as one, serving(log, [1]) as other:
        one.until_ready()
        other.until_ready()
        for key in ("north", "south", "", ODD):
            said = [each.ask(f"/actors/Depot/{written(key)}") for each in (one, other)]
            assert sorted(each.status for each in said) == [200, 421]
            (refused,) = [each.body for each in said if each.status == 421]
            assert "this process follows" in refused["error"]


def test_before_the_app_has_a_topic_there_is_a_reason(tmp_path: Path) -> None:
    EmbeddedLog(tmp_path / "log").close()
    with serving(tmp_path / "log") as asked:
        said = asked.ask("/actors/Depot/north")
        assert (said.status, said.headers["retry-after"]) == (503, "1")
        wait_until(
            lambda: "never run" in asked.ask("/actors/Depot/north").body["error"], "it says what is missing"
        )
        assert asked.ask("/readyz").status == 503
        stocked(tmp_path)
        asked.until_ready()
        assert asked.ask("/actors/Depot/north/count").body["value"] == 2
