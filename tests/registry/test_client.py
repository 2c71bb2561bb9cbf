"""The client of a registry, against a server that fails as servers do."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from tailrace.core.errors import RegistryError
from tailrace.registry.client import Client, Schema


class Server:
    """Answers with these, one after the other; ``asked`` is what came: method, path, login, content."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers, self.asked = list(answers), list[tuple[str, str, str | None, Any]]()
        self.location = self.slow_header = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                login = self.headers.get("Authorization")
                outer.asked.append((self.command, self.path, login, json.loads(content or b"null")))
                status, said = outer.answers.pop(0)
                slowly = isinstance(said, list)
                data = (
                    b"".join(said)
                    if slowly
                    else said
                    if isinstance(said, bytes)
                    else json.dumps(said).encode()
                )
                self.send_response(status)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", str(len(data)))
                with suppress(OSError):  # who asked has gone
                    self.flush_headers()
                    for one in outer.slow_header:
                        self.wfile.write(one.encode())
                        time.sleep(0.01)
                    self.end_headers()
                    for part in said if slowly else [data]:
                        self.wfile.write(part)
                        time.sleep(0.01 if slowly else 0)

            do_GET = do_POST = answer  # noqa: N815  # the names of the base class

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/api"


@contextmanager
def answering(*answers: tuple[int, Any]) -> Generator[Server]:
    server = Server(*answers)
    thread = Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.registry.client._PAUSE_S", 0)


SCHEMA = {"schema": '"string"'}


def test_a_question_is_asked_again_while_the_server_fails() -> None:
    with answering((503, {}), (200, b"<html>"), (200, SCHEMA)) as server:
        assert Client(server.url).schema(7) == Schema('"string"', "AVRO")
    assert [path for _, path, _, _ in server.asked] == ["/api/schemas/ids/7"] * 3


def test_it_is_given_up_after_three_times_and_the_last_failure_named() -> None:
    with (
        answering((503, {}), (500, {}), (502, {})) as server,
        pytest.raises(RegistryError, match="does not answer: 502"),
    ):
        Client(server.url).schema(7)
    assert len(server.asked) == 3


def test_the_next_address_is_asked_when_one_is_down() -> None:
    with answering((200, SCHEMA)) as server:
        Client(f"http://127.0.0.1:9, {server.url}/").schema(7)
    assert len(server.asked) == 1


def test_the_login_is_sent_and_a_denial_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_REGISTRY_USER", "Ada")
    monkeypatch.setenv("TAILRACE_REGISTRY_PASSWORD", "secret")
    with answering((401, {})) as server, pytest.raises(RegistryError, match="401") as error:
        Client(server.url).schema(7)
    assert [login for _, _, login, _ in server.asked] == ["Basic QWRhOnNlY3JldA=="]
    assert "secret" not in str(error.value)


def test_a_schema_is_registered_or_looked_up_under_its_subject() -> None:
    with answering((200, {"id": 5}), (200, {"id": 5}), (409, {"message": "it is\nincompatible"})) as server:
        client = Client(server.url)
        for register in (True, False):
            assert client.own("t-value", "JSON", "{}", register=register).id == 5
        with pytest.raises(
            RegistryError, match=r"refuses the schema of the subject 't-value': 409 .*incompatible"
        ):
            client.own("t-value", "JSON", "{}", register=True)
    sent = {"schemaType": "JSON", "schema": "{}"}
    assert server.asked[:2] == [
        ("POST", "/api/subjects/t-value/versions", None, sent),
        ("POST", "/api/subjects/t-value", None, sent),
    ]


def test_a_redirect_is_no_answer() -> None:
    with answering((200, SCHEMA)) as other, answering((302, {})) as server:
        server.location = f"{other.url}/schemas/ids/7"
        with pytest.raises(RegistryError, match="does not give the schema 7 of a record: 302"):
            Client(server.url).schema(7)
        assert other.asked == []
        assert len(server.asked) == 1


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        answering(*[(200, b" " * (5 << 20))] * 3) as server,
        pytest.raises(RegistryError, match="is longer than 4194304 bytes"),
    ):
        Client(server.url).schema(7)
    monkeypatch.setattr("tailrace.registry.client._TIMEOUT_S", 0.1)
    with (
        answering(*[(200, [b" "] * 100)] * 3) as server,
        pytest.raises(RegistryError, match="answer: its answer takes longer than 0 s"),
    ):
        Client(server.url).schema(7)


@pytest.mark.parametrize("code", [200, 404])
def test_headers_that_come_byte_by_byte_are_given_up(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.registry.client._TIMEOUT_S", 0.1)
    with answering(*[(code, SCHEMA)] * 3) as server:
        server.slow_header = f"X-Slow: {'x' * 50}\r\n"
        with pytest.raises(RegistryError, match="answer: its answer takes longer than 0 s"):
            Client(server.url).schema(7)


def test_what_a_registry_says_of_an_error_is_cut_and_in_one_line() -> None:
    said = b"\x1b[31mno\x1b]0;owned\x07\nline " + b"e" * 1_000_000
    with answering((404, said)) as server, pytest.raises(RegistryError) as error:
        Client(server.url).schema(7)
    assert ": 404 [31mno ]0;owned line eee" in str(error.value)
    assert len(str(error.value)) < 700


def test_a_schema_that_refers_to_others_is_refused() -> None:
    answer = (200, {**SCHEMA, "references": [{"name": "other"}]})
    with answering(answer) as server, pytest.raises(RegistryError, match="refers to others"):
        Client(server.url).schema(7)


@pytest.mark.parametrize("url", ["", "registry:8081", "https://user:password@host"])
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(RegistryError, match="missing or wrong") as error:
        Client(url)
    assert "user:" not in str(error.value)
