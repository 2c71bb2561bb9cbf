"""A certificate for the loopback address, made with the ``keytool`` that every JDK has."""

from __future__ import annotations

import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that signs itself: the broker has it with its key, the clients trust it."""

    store: Path
    """PKCS12, with the key: for the broker."""
    password: str
    """Of the store."""
    authority: Path
    """PEM, without the key: for the clients."""

    @classmethod
    def make(cls, java: Path, folder: Path) -> Certificate:
        """Make one for 127.0.0.1 in a folder."""
        made = cls(folder / "broker.p12", secrets.token_hex(16), folder / "authority.pem")
        keytool = java.with_name("keytool")
        access = [
            "-keystore",
            str(made.store),
            "-storetype",
            "PKCS12",
            "-storepass",
            made.password,
            "-alias",
            "broker",
        ]
        commands = [
            ["-genkeypair", "-keyalg", "EC", "-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1", "-validity", "30", *access],
            ["-exportcert", "-rfc", "-file", str(made.authority), *access],
        ]  # fmt: skip
        for command in commands:
            done = subprocess.run(
                [str(keytool), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"keytool cannot make a certificate: {done.stdout}"
        return made
