"""The health check of the image: whether the service of this container answers ``/livez`` at its own ``TAILRACE_HTTP``.

Exit code 0 if it does, or if no address is set. Else 1, with the reason on standard output, where an engine keeps it.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from typing import Final

PATIENCE_S: Final = 4
"""Less than the timeout of the health check, so that the reason is known."""


def url(address: str, *, encrypted: bool) -> str:
    """Where to ask: a service that listens on every interface also listens on loopback."""
    host, _, port = address.rpartition(":")
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104  # compared, not listened on
    return f"{'https' if encrypted else 'http'}://{here}:{port}/livez"


def main() -> int:
    """Ask once. The certificate is not checked: it names the service for its clients, not for this container."""
    address = os.environ.get("TAILRACE_HTTP", "")
    if not address:
        sys.stdout.write(
            "TAILRACE_HTTP is not set, so nothing was asked. With an address there, the service answers for itself."
        )
        return 0
    context = ssl._create_unverified_context()  # noqa: S323  # see above
    if os.environ.get("TAILRACE_HTTP_CLIENT_CA"):
        sys.stdout.write(
            "TAILRACE_HTTP_CLIENT_CA is set, and this check has no certificate: nothing was asked."
        )
        return 0
    asked = url(address, encrypted=bool(os.environ.get("TAILRACE_HTTP_CERTIFICATE")))
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S, context=context):  # noqa: S310  # http or https
            return 0
    except OSError as error:
        sys.stdout.write(f"{asked}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
