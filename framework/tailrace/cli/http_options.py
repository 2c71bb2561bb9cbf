"""The options of commands that answer over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tailrace.cli.arguments import packed
from tailrace.cli.settings import refuse_typed, setting
from tailrace.core.extras import check_installed

if TYPE_CHECKING:
    from tailrace.http.listening import Listen


class Http(NamedTuple):
    """Where a command answers over HTTP, and who may ask."""

    http: str | None
    http_token_file: Path | None
    http_certificate: Path | None
    http_key: Path | None
    http_client_ca: Path | None

    def listen(self, default: str | None = None) -> Listen | None:
        """What the options say; None without ``--http`` where there is no default.

        Raises:
            click.UsageError: An option goes with ``--http``.
            OptionError: See ``listening.listen_at``.
            MissingExtraError: The packages are not installed.
        """
        address = self.http or default
        if address is None:
            refuse_typed(self._fields[1:], "goes with --http")
            return None
        packages = "uvicorn", "httptools", "starlette", "jinja2", "prometheus_client"
        check_installed("answers over HTTP", "http", *packages)
        from tailrace.http.listening import listen_at  # noqa: PLC0415  # the extra's room

        return listen_at(
            address, self.http_token_file, self.http_certificate, self.http_key, self.http_client_ca
        )


_FILE = click.Path(dir_okay=False, path_type=Path)
http_options = packed(
    "http",
    Http,
    setting(
        "--http",
        metavar="HOST:PORT",
        help="Answer over HTTP there; port 0 is a free one. Beyond the loopback interface a token or a client CA is required.",
    ),
    setting(
        "--http-token-file",
        type=_FILE,
        help="File with the token that requests must carry (Authorization: Bearer).",
    ),
    setting("--http-certificate", type=_FILE, help="PEM file: answer by HTTPS, with this certificate."),
    setting("--http-key", type=_FILE, help="PEM file with its private key, if it is not in the same file."),
    setting(
        "--http-client-ca",
        type=_FILE,
        help="PEM file: only clients with a certificate of this authority may ask.",
    ),
)
