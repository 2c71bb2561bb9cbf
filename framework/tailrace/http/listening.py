"""Where a process listens for HTTP, and who may ask.

======================  ===============================================================================================
address                 who may ask
======================  ===============================================================================================
loopback                every process of this machine; with a token, those that send it
any other               with a token, those that send it; with a client CA, those with a certificate that it has
                        signed; with both, those with both. With neither the address is refused
======================  ===============================================================================================

A token travels as it is: without a certificate of the server, only where the network is encrypted otherwise.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from tailrace.core.errors import OptionError

BACKLOG = 128
"""Connections that wait for accept; also the most that are accepted at once."""
LEAST_TOKEN = 16
"""Characters of a token: fewer can be guessed."""


@dataclass(frozen=True, slots=True)
class Listen:
    """An address, and who may ask there. See the head of this file."""

    host: str
    """An IP address. Names are looked up when the option is read."""
    port: int
    """0: a free one."""
    token: str = field(default="", repr=False)
    """The bearer token that requests must carry; empty: none."""
    certificate: Path | None = None
    """PEM file with the certificate of the server: it answers by HTTPS."""
    key: Path | None = None
    """PEM file with its private key; None: it is in the file of the certificate."""
    client_ca: Path | None = None
    """PEM file with the certificates of the authorities that sign those of clients: others are turned away."""

    @property
    def knows_clients(self) -> bool:
        """Whether a request shows who asks: by the token, or by a certificate."""
        return bool(self.token or self.client_ca)

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        return ip_address(self.host).is_loopback

    def bind(self) -> socket.socket:
        """A socket that listens. Raises OptionError: the address is taken, or is none of this machine's."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # With the protocol named, asyncio sets TCP_NODELAY on connections. Otherwise each answer would wait 40 ms for an ACK.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self.port))
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            raise OptionError(
                f"nothing can listen on {self.host} port {self.port}: {error.strerror or error}",
                hint="End what uses it, or choose another port; 0 is a free one.",
            ) from None
        return listening


def listen_at(
    address: str,
    token_file: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    client_ca: Path | None = None,
) -> Listen:
    """What the options of a command say; ``address`` is ``HOST:PORT``.
    Raises OptionError: the address cannot be read, or can be reached from other machines and everybody could
    ask; a file cannot be read, or is none of its kind.
    """
    host, port = _split(address)
    if client_ca is not None and certificate is None:
        raise OptionError(
            "certificates of clients are checked by TLS, for which the server needs a certificate of its own",
            hint="Give --http-certificate as well as --http-client-ca.",
        )
    if key is not None and certificate is None:
        raise OptionError("--http-key goes with --http-certificate")
    token = "" if token_file is None else _token(token_file)
    for path in (certificate, key, client_ca):
        if path is not None:
            _read(path)
    found = Listen(host, port, token, certificate, key, client_ca)
    if not (found.is_loopback or token or client_ca):
        raise OptionError(
            f"{address} can be reached from other machines, and everybody could ask there",
            hint="Give a token (--http-token-file), or let clients show a certificate (--http-client-ca); or listen on 127.0.0.1.",
        )
    return found


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    try:
        if not colon or not 0 <= (number := int(port)) < 1 << 16:
            raise ValueError
    except ValueError:
        raise OptionError(
            f"{address!r} is no address", hint="Write HOST:PORT, such as 127.0.0.1:8080."
        ) from None
    host = host.removeprefix("[").removesuffix("]")
    try:
        return str(ip_address(host)), number
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0][4][0]), number
    except (OSError, UnicodeError):
        raise OptionError(
            f"{host!r} in {address!r} is no address of this machine and no name that is known here",
            hint="Write HOST:PORT, such as 127.0.0.1:8080.",
        ) from None


def _token(path: Path) -> str:
    token = _read(path).decode("utf-8", errors="replace").strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise OptionError(
            f"{path} holds no token: it must be one word of at least {LEAST_TOKEN} ASCII characters",
            hint="Make one: openssl rand -hex 32",
        )
    return token


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error}") from None
