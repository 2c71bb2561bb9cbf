"""Questions about the state of a service over HTTP, while it works; and a picture of the page for people.

The answers come from ``tailrace serve``, a process that follows the changelog. They are compared with the outputs of the service.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from services.demo.accounts import read
from services.demo.console import Console
from services.demo.process import Folders, Service, ServiceFailed
from services.flights import aircraft
from tailrace.log import Log

ASKED = 100
"""Number of aircraft: those that have flown most."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_START_S = 60.0
"""Within this time the process follows all partitions."""
ANSWERED_S = 60.0
"""Within this time an answer has what is committed."""
_LEAVE_S = 60.0
"""Within this time the process ends after SIGTERM."""
_LOOK_S = 0.05


class Answers(NamedTuple):
    """What was asked while the service worked, and the answers that its outputs contradict."""

    asked: int
    seconds: float
    example: str
    errors: list[str]


class Questions:
    """A process of ``tailrace serve`` from entering the context to leaving it."""

    def __init__(self, service: Service, folders: Folders, console: Console) -> None:
        self._service, self._folders, self._console = service, folders, console
        self._words = folders.base / "serve.log"
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Questions:
        command = [sys.executable, "-m", "tailrace", "serve", self._service.reference]
        command += ["--log", str(self._folders.log), "--http", "127.0.0.1:0", "--log-format", "json"]
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
        self._port = self._until_it_answers()
        self._console.say(
            f"   ✓ tailrace serve is process {self._process.pid}: it follows {self._service.name}, and answers at 127.0.0.1:{self._port}"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            code = self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks of its threads
            self._process.wait()
            raise ServiceFailed(
                f"tailrace serve has not ended {_LEAVE_S:.0f} s after SIGTERM: {self._words} has the stacks of its threads"
            ) from error
        if code and error is None:
            raise ServiceFailed(f"tailrace serve has ended with exit code {code}: see {self._words}")

    def compare(self, log: Log) -> Answers:
        """Ask for the aircraft that have flown most. Each must have as many legs as the log has finished ones of it."""
        flown: Counter[str] = Counter(one.tail for one in read(log, aircraft.legs_finished))
        tails = [tail for tail, _ in flown.most_common(ASKED)]
        begun_s = time.monotonic()
        found = {tail: self._legs(tail, flown[tail]) for tail in tails}
        seconds = time.monotonic() - begun_s
        errors = [
            f"over HTTP {tail} has {legs} legs, and {flown[tail]:,} in the outputs"
            for tail, legs in found.items()
            if legs != flown[tail]
        ]
        _, said = self._ask(f"/actors/Aircraft/{quote(tails[0])}/status")
        return Answers(len(tails), seconds, f"{tails[0]} is {said['result']}", errors)

    def picture(self, path: Path) -> Path | None:
        """A picture of the page. None if there is no browser."""
        return picture_of(f"http://127.0.0.1:{self._port}/", path)

    def _legs(self, tail: str, due: int) -> int:
        """The legs of an aircraft, once the follower has what is committed; what it says after a while if it never has."""
        until_s = time.monotonic() + ANSWERED_S
        while True:
            status, said = self._ask(f"/actors/Aircraft/{quote(tail)}")
            legs = said["fields"]["legs"] if status == http.HTTPStatus.OK else -1
            if legs >= due or time.monotonic() > until_s:
                return int(legs)
            time.sleep(_LOOK_S)

    def _until_it_answers(self) -> int:
        """The port, as soon as all partitions are followed."""
        assert self._process is not None
        until_s, port = time.monotonic() + _START_S, 0
        while time.monotonic() < until_s and self._process.poll() is None:
            port = port or self._port_of_words()
            if port:
                self._port = port
                if self._ask("/readyz")[0] == http.HTTPStatus.OK:
                    return port
            time.sleep(_LOOK_S)
        said = self._words.read_text("utf-8", errors="replace").splitlines()[-5:]
        raise ServiceFailed("\n   ".join(["tailrace serve does not answer; its last log lines:", *said]))

    def _port_of_words(self) -> int:
        for line in self._words.read_bytes().splitlines():
            if b'"answering"' in line:
                return int(msgspec.json.decode(line)["port"])
        return 0

    def _ask(self, path: str) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, msgspec.json.decode(response.read())


def picture_of(url: str, path: Path) -> Path | None:
    """A picture of a page. None if there is no browser."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        return None
    with TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        subprocess.run(
            [
                browser,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--hide-scrollbars", "--window-size=1280,1000", f"--user-data-dir={profile}"),
                *(f"--screenshot={path.resolve()}", url),
            ],
            capture_output=True,
            check=True,
            timeout=120,
        )
    return path
