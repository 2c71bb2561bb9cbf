"""The health check of an image asks the service of its own container, over HTTP or HTTPS, on loopback."""

from __future__ import annotations

import pytest

from tailrace.http import health
from tailrace.http.listening import Listen
from tests.http.test_server import TOKEN, served

ALL_INTERFACES = "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", ALL_INTERFACES])
def test_a_service_that_answers_is_healthy_and_needs_no_token_for_it(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(Listen(host, 0, TOKEN), "/livez") as port:
        monkeypatch.setenv("TAILRACE_HTTP", f"{host}:{port}")
        assert health.main() == 0
    assert capsys.readouterr().out == ""
    assert health.main() == 1, "it has ended"
    assert capsys.readouterr().out.startswith(f"http://127.0.0.1:{port}/livez: ")
    monkeypatch.setenv("TAILRACE_HTTP_CERTIFICATE", "localhost.pem")
    assert health.main() == 1
    assert capsys.readouterr().out.startswith(f"https://127.0.0.1:{port}/livez: ")


def test_an_answer_that_is_an_error_is_not_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(Listen("127.0.0.1", 0, TOKEN)) as port:  # which asks for the token
        monkeypatch.setenv("TAILRACE_HTTP", f"127.0.0.1:{port}")
        assert health.main() == 1
    assert "401" in capsys.readouterr().out


@pytest.mark.parametrize(
    "settings",
    [{}, {"TAILRACE_HTTP": ""}, {"TAILRACE_HTTP": "127.0.0.1:1", "TAILRACE_HTTP_CLIENT_CA": "ca.pem"}],
)
def test_where_nothing_can_be_asked_it_is_healthy_and_the_reason_is_shown(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TAILRACE_HTTP", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert health.main() == 0
    assert "Nothing was asked" in capsys.readouterr().out
