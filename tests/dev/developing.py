"""A session of `tailrace dev` as a process, on a project that `tailrace new` has written, and a browser."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.projects.project import write_project
from tests.kafka.broker.cluster import free_ports
from tests.runtime.processes import PATIENCE_S, wait_until

RUNS = "a partition runs"


def command(project: Path, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tailrace", *map(str, arguments)],
        input=given, cwd=project, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment(),
    )  # fmt: skip


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Session:
    """A project, and the session on it. It ends with the block."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.project = folder / "shop"
        if not self.project.exists():
            write_project(self.project, "service")
        self.source = self.project / "shop.py"
        self.port, self._said = free_ports(1)[0], folder / "dev.log"
        self.url = f"http://127.0.0.1:{self.port}"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "dev", "shop:app", "--http", self.url[7:], *options],
                cwd=self.project, stdout=said, stderr=said, env=environment(), start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not self.processes(), "the worker and the page have left")
        if error is not None:
            error.add_note(self.said())

    def until(self, condition: Callable[[], object], what: str) -> None:
        def ended_or_true() -> bool:
            return self.process.poll() is not None or bool(condition())

        wait_until(ended_or_true, what)
        assert self.process.poll() is None, "the session has ended"

    def said(self) -> str:
        return self._said.read_text()

    def processes(self) -> list[int]:
        """Those of the session that live."""
        found: list[int] = []
        for one in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = one.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(one.parent.name))
        return found

    def stop(self) -> int:
        """Ctrl-C at the terminal: every process gets it."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def append(self, topic: str, lines: list[dict[str, Any]]) -> None:
        given = "".join(json.dumps(one) + "\n" for one in lines)
        done = command(self.project, "log", "append", topic, "--app", "shop:app", given=given)
        assert done.returncode == 0, done.stderr

    def dumped(self, topic: str) -> list[dict[str, Any]]:
        """The committed records of a topic."""
        done = command(self.project, "log", "dump", topic)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def change(self, before: str, after: str) -> None:
        text = self.source.read_text()
        assert before in text
        self.source.write_text(text.replace(before, after))

    def ask(self, path: str) -> Any:
        """What the page answers, as JSON or text; None if it does not."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                body = answer.read()
                return (
                    json.loads(body)
                    if answer.headers["content-type"] == "application/json"
                    else body.decode()
                )
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return None

    def post(self, path: str, **headers: str) -> int:
        request = urllib.request.Request(self.url + path, b"", headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


class Browser:
    """A Chromium without a window, driven over a pipe by its DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        given, self._to = os.pipe()
        self._from, answered = os.pipe()
        theirs_in, theirs_out = (fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in (given, answered))
        # Chromium reads the file descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec chromium "$@" 3<&{theirs_in} 4>&{theirs_out}', "sh", "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for one in (given, answered, theirs_in, theirs_out):
            os.close(one)
        self._number, self._left = 0, b""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, url: str) -> None:
        self._call("Page.navigate", tab=True, url=url)
        wait_until(lambda: self.run("document.readyState") == "complete", "the page is loaded")

    def run(self, script: str) -> Any:
        done = self._call("Runtime.evaluate", tab=True, expression=script)
        return done["result"].get("value")

    def click(self, button: str) -> None:
        found = f"[...document.querySelectorAll('button')].find(one => one.textContent == '{button}')"
        self.run(f"{found}.click()")

    def _call(self, method: str, *, tab: bool = False, **parameters: Any) -> Any:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        if tab:
            asked["sessionId"] = self._tab
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                read = os.read(self._from, 1 << 16)
                assert read, "Chromium has ended"
                self._left += read
            message, _, self._left = self._left.partition(b"\0")
            answer = json.loads(message)
            if answer.get("id") == self._number:
                return answer["result"]
