"""An object store that speaks S3 over the loopback: moto's server, a process of its own, ended by who began it."""

import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

SERVER = """
import logging, sys
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


class ObjectStore:
    """A bucket of its own in a store that is running."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(self, method: str, path: str) -> bytes:
        """What the store answers to a plain request."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    def uri(self, path: str, secret: str = "open-sesame") -> str:
        """A URI under which pyarrow reaches a path in the store."""
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://someone:{secret}@{path}?{options}"


@contextmanager
def object_store() -> Generator[ObjectStore]:
    """A store on a port that was free."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield ObjectStore(int(process.stdout.readline()))
        finally:
            process.kill()
