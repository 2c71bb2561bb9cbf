"""The health check of an image: whether the service of this container answers ``/livez`` at its own ``TAILRACE_HTTP``.

Exit code 0 if it does, and if nothing can be asked: there is no address, or clients need a certificate. Otherwise 1. The reason
is on standard output, where container engines keep it.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from typing import Final

PATIENCE_S: Final = 4
"""Less than the timeout of the health check, so that the reason is known."""


def main() -> int:
    """Ask once. The certificate is not checked: it names the service for its clients, not for this container."""
    host, _, port = os.environ.get("TAILRACE_HTTP", "").rpartition(":")
    if not port or os.environ.get("TAILRACE_HTTP_CLIENT_CA"):
        sys.stdout.write("Nothing was asked: TAILRACE_HTTP is not set, or TAILRACE_HTTP_CLIENT_CA is.")
        return 0
    scheme = "https" if os.environ.get("TAILRACE_HTTP_CERTIFICATE") else "http"
    # A service that listens on every interface also listens on loopback.
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104  # compared, not listened on
    url = f"{scheme}://{here}:{port}/livez"
    context = ssl._create_unverified_context()  # noqa: S323  # see above
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context):  # noqa: S310  # http or https
            return 0
    except OSError as error:
        sys.stdout.write(f"{url}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
