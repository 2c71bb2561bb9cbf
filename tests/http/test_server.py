"""The HTTP server: who may ask, and that slow, silent and many clients keep nobody out."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tailrace.core.errors import OptionError
from tailrace.http import server as serving
from tailrace.http.listening import BACKLOG, Listen, listen_at
from tailrace.http.server import App, Receive, Scope, Send, Server
from tests.http.asking import ask
from tests.runtime.processes import wait_until

TOKEN = "a-token-of-some-length"


async def echo(scope: Scope, _receive: Receive, send: Send) -> None:
    """Answers with the path."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})


@contextmanager
def served(listen: Listen, *open_paths: str, app: App = echo) -> Generator[int]:
    server = Server(app, listen, open_paths)
    port = server.start()
    try:
        yield port
    finally:
        server.close()
        assert "tailrace-http" not in {one.name for one in threading.enumerate()}


@contextmanager
def held() -> Generator[int]:
    """A server that answers ``/held`` last of all."""
    released = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/held":
            await asyncio.to_thread(released.wait)
        await echo(scope, receive, send)

    with served(Listen("127.0.0.1", 0), "/held", "/livez", app=app) as port:
        yield port
        released.set()


# --- addresses and files


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.0.0.9:8080"])
def test_a_loopback_address_needs_no_token(address: str) -> None:
    assert listen_at(address).is_loopback


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "[::]:8080", "192.0.2.7:80"])
def test_an_address_that_others_reach_is_refused_without_a_token_or_a_client_ca(
    address: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="can be reached from other machines"):
        listen_at(address)
    (tmp_path / "token").write_text(TOKEN)
    assert listen_at(address, tmp_path / "token").token == TOKEN


@pytest.mark.parametrize(
    "address", ["8080", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", "no such host:80"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match="no address"):
        listen_at(address)


@pytest.mark.parametrize(
    "content", ["", "short", "two words that are long enough", "t\u00f6ken-of-some-length"]
)
def test_a_file_without_a_token_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content, "utf-8")
    with pytest.raises(OptionError, match="holds no token"):
        listen_at("127.0.0.1:0", tmp_path / "token")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="token cannot be read: No such file"):
        listen_at("127.0.0.1:0", tmp_path / "token")


def test_a_client_ca_needs_a_certificate_of_the_server(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a certificate of its own"):
        listen_at("127.0.0.1:0", client_ca=tmp_path / "ca.pem")


def test_a_token_is_not_shown(tmp_path: Path) -> None:
    assert TOKEN not in repr(Listen("127.0.0.1", 0, TOKEN))


def test_a_taken_port_is_an_error_that_says_so() -> None:
    with served(Listen("127.0.0.1", 0)) as port, pytest.raises(OptionError, match=f"port {port}"):
        Server(echo, Listen("127.0.0.1", port)).start()


# --- who may ask


def test_a_request_needs_the_token_except_for_open_paths() -> None:
    with served(Listen("127.0.0.1", 0, TOKEN), "/livez") as port:
        assert ask(port, "/status", TOKEN) == (200, b"/status")
        assert ask(port, "/livez") == (200, b"/livez")
        for wrong in ("", TOKEN[:-1], TOKEN + "x", "another-token-of-some-length"):
            found = ask(port, "/status", wrong)
            assert found.status == 401
            assert "no token, or another one" in found.json["error"]
        assert ask(port, "/livez/../status").status == 401
        assert ask(port, "/livez%2f").status == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[(one, 200) for one in ("localhost:80", "127.0.0.1", "[::1]:8", "[::1]", "LOCALHOST")],
        *[(one, 421) for one in ("evil.example", "", "[::1]evil.example", "localhost:80@evil.example")],
        *[(one, 421) for one in ("[::1]:80.evil.example", "localhost\r\nHost: evil.example")],
    ],
)
def test_without_a_token_no_other_host_is_answered_for(host: str, status: int) -> None:
    with served(Listen("127.0.0.1", 0)) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        client.settimeout(20)
        assert client.recv(100).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-origin", 200), ("none", 200), ("", 200)]
)
def test_without_a_token_no_page_of_another_site_is_answered(site: str, status: int) -> None:
    with served(Listen("127.0.0.1", 0)) as port, socket.create_connection(("127.0.0.1", port)) as client:
        sent = f"Sec-Fetch-Site: {site}\r\n" if site else ""
        client.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\n{sent}\r\n".encode())
        client.settimeout(20)
        assert client.recv(100).startswith(b"HTTP/1.1 %d " % status)


def test_a_request_without_a_host_is_refused_without_a_token() -> None:
    with served(Listen("127.0.0.1", 0)) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.settimeout(20)
        assert client.recv(100).startswith(b"HTTP/1.1 421 ")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a certificate of the server and one of a client; and one of nobody's."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("ca", "other"):
        # Python 3.13 takes no authority that does not say what its key is for.
        openssl(
            "req", "-x509", *new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
    for name, by in (("localhost", "ca"), ("client", "ca"), ("stranger", "other")):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "san").write_text(f"subjectAltName=DNS:{name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key", "-CAcreateserial",
            "-days", "2", "-out", f"{name}.pem", "-extfile", "san",
        )  # fmt: skip
    return folder


def test_with_a_client_ca_only_its_clients_are_answered(authority: Path) -> None:
    listen = listen_at(
        "127.0.0.1:0",
        certificate=authority / "localhost.pem",
        key=authority / "localhost.key",
        client_ca=authority / "ca.pem",
    )
    with served(listen) as port:
        for name, is_known in (("client", True), ("stranger", False), ("", False)):
            tls = ssl.create_default_context(cafile=str(authority / "ca.pem"))
            if name:
                tls.load_cert_chain(authority / f"{name}.pem", authority / f"{name}.key")
            if is_known:
                assert ask(port, "/status", tls=tls).status == 200
            else:
                with pytest.raises(OSError):
                    ask(port, "/status", tls=tls)


def test_a_key_that_is_not_the_certificates_is_an_error(authority: Path) -> None:
    listen = listen_at("127.0.0.1:0", certificate=authority / "localhost.pem", key=authority / "ca.key")
    with pytest.raises(OptionError, match="cannot be used"):
        Server(echo, listen).start()


# --- slow, silent and many


def by_tls(authority: Path) -> tuple[Listen, ssl.SSLContext]:
    listen = Listen("127.0.0.1", 0, certificate=authority / "localhost.pem", key=authority / "localhost.key")
    return listen, ssl.create_default_context(cafile=str(authority / "ca.pem"))


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_thousand_silent_connections_keep_nobody_out(has_tls: bool, authority: Path) -> None:
    listen, tls = by_tls(authority) if has_tls else (Listen("127.0.0.1", 0), None)
    files = len([*Path("/proc/self/fd").iterdir()])
    with ExitStack() as stack:
        port = stack.enter_context(served(listen))
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(1_000)]
        assert ask(port, "/livez", tls=tls).status == 200
        assert len([*Path("/proc/self/fd").iterdir()]) < files + 1_000 + serving.MOST_WAITING + BACKLOG
        # The oldest ones had to give way.
        silent[0].settimeout(20)
        with pytest.raises(ConnectionError):
            assert silent[0].recv(1) == b"", "it was closed"
            raise ConnectionError


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /livez HTTP/1.1\r\nHost: a", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"],
)
def test_a_client_that_does_not_go_on_is_cut_off(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 0.3)
    with served(Listen("127.0.0.1", 0)) as port, socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(sent)
        slow.settimeout(20)
        with pytest.raises(ConnectionError):
            assert slow.recv(1) == b"", "it was closed"
            raise ConnectionError
        assert ask(port, "/livez").status == 200


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_client_that_does_not_finish_the_handshake_is_cut_off(
    sent: bytes, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 0.3)
    listen, tls = by_tls(authority)
    with served(listen) as port, socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(sent)
        slow.settimeout(20)
        with pytest.raises(ConnectionError):
            while slow.recv(1 << 10):
                pass
            raise ConnectionError
        assert ask(port, "/livez", tls=tls).status == 200


def test_strangers_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    serving._seldom._passed_s.clear()
    with served(Listen("127.0.0.1", 0)) as port:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"no request\r\n\r\n")
                client.settimeout(20)
                client.recv(100)
    assert [one.message for one in caplog.records if one.name.startswith("uvicorn")] == [
        "Invalid HTTP request received."
    ]


def test_a_client_that_takes_no_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 0.3)
    ended: list[bool] = []

    async def long(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
        ended.append(True)

    server = Server(long, Listen("127.0.0.1", 0))
    port = server.start()
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        taken = 0
        slow.settimeout(20)
        connections = server._server.server_state.connections
        wait_until(lambda: connections, "it is connected")
        wait_until(lambda: not connections, "the connection is closed")
        try:
            while found := slow.recv(1 << 20):
                taken += len(found)
        except ConnectionError:
            pass
        assert taken < 100_000_000
    server.close()


def test_headers_without_end_are_cut_off() -> None:
    with served(Listen("127.0.0.1", 0)) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(20)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(ConnectionError):
            while True:
                client.sendall(b"X: " + b"x" * 10_000 + b"\r\n")
        assert ask(port, "/livez").status == 200


def test_headers_without_end_are_cut_off_behind_a_request_under_way() -> None:
    with held() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(20)
        client.sendall(b"GET /held HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n")
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 50_000_000:
                client.sendall(b"X: " + b"x" * 10_000 + b"\r\n")
                sent += 10_000


def test_a_connection_with_too_many_requests_waiting_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 1_000)
    with held() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(20)
        with pytest.raises(ConnectionError):
            client.sendall(b"GET /held HTTP/1.1\r\n\r\n" + b"GET /livez HTTP/1.1\r\n\r\n" * 20_000)
            assert client.recv(1) == b"", "it was closed"
            raise ConnectionError
        assert ask(port, "/livez").status == 200


def test_strangers_who_pipeline_requests_keep_nobody_out() -> None:
    asked: list[str] = []

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["type"])
        await echo(scope, receive, send)

    with ExitStack() as stack:
        port = stack.enter_context(served(Listen("127.0.0.1", 0), "/livez", app=count))
        for _ in range(20):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.setblocking(False)
            with suppress(BlockingIOError, ConnectionError):
                for _ in range(20):
                    client.send(b"GET /livez HTTP/1.1\r\n\r\n" * 3_000)
        assert ask(port, "/livez").status == 200
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < serving._LEAVE_S, "nobody is waited for"
    assert len(asked) <= 20 * (1 + serving.MOST_PIPELINED)


def test_requests_on_one_connection_are_answered_in_turn() -> None:
    with served(Listen("127.0.0.1", 0)) as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(20)
        client.sendall(b"".join(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n for n in range(20)))
        found = b""
        while b"/19" not in found:
            found += client.recv(65536)
        at = [found.index(b"/%d" % n) for n in range(10, 20)]
        assert at == sorted(at)
