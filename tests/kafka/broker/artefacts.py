"""The jars of the broker and the schema registry, fetched once by Maven as a pom says and kept in the user's cache::

    $XDG_CACHE_HOME/tailrace/kafka-DIGEST/*.jar      (XDG_CACHE_HOME by default: ~/.cache)
    $XDG_CACHE_HOME/tailrace/registry-DIGEST/        (the program as it is distributed, unpacked)

    the folder exists     it is complete: it is filled under another name and renamed at the end
    the pom changes       DIGEST is of the pom's bytes, so it has another folder
    several at once       one fetches under a lock, the others wait

``make kafka`` does this before the tests, and makes the archive of ``classes.py``. A test that finds no folder does it itself, so it needs Maven and a repository then.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from tailrace.spark.java import check_java
from tests.kafka.broker.classes import make
from tests.kafka.broker.errors import NoBrokerError

BROKER = Path(__file__).with_name("pom.xml")
REGISTRY = Path(__file__).parent.parent / "registry" / "pom.xml"
FETCH_S = 900.0


def jars() -> Path:
    """The folder with the jars of the broker.

    Raises:
        NoBrokerError: They are not in the cache and Maven is missing or cannot fetch them.
    """
    return _kept("kafka", BROKER, "dependency:copy-dependencies")


def registry() -> Path:
    """The folder with the schema registry. Raises NoBrokerError, like ``jars``."""
    return _kept("registry", REGISTRY, "dependency:unpack-dependencies")


def _kept(name: str, pom: Path, goal: str) -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"
    folder = caches / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        caches.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock"), timeout=2 * FETCH_S, fallback_to_soft=False):
            if not folder.is_dir():
                _fetch(folder, pom, goal)
    return folder


def _fetch(folder: Path, pom: Path, goal: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoBrokerError(
            "Kafka or the schema registry is not in the cache, and Maven, which fetches them, was not found. Install it (Debian: "
            "apt-get install maven), or set TAILRACE_TEST_KAFKA to the host:port of a broker."
        )
    with TemporaryDirectory(dir=folder.parent, prefix="fetching-") as work:
        # The pom is copied so that Maven leaves nothing in the source tree.
        shutil.copy(pom, Path(work) / "pom.xml")
        filled = Path(work) / "jars"
        command = [maven, "--batch-mode", "--quiet", "--no-transfer-progress", "--strict-checksums"]
        try:
            done = subprocess.run(
                [*command, goal, f"-DoutputDirectory={filled}"],
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=FETCH_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NoBrokerError(f"Maven has not fetched what {pom} names within {FETCH_S:.0f} s.") from error
        if done.returncode != 0:
            raise NoBrokerError(
                f"Maven cannot fetch what {pom} names (exit code {done.returncode}):\n{done.stdout}"
            )
        filled.rename(folder)


if __name__ == "__main__":
    try:
        make(check_java(), jars())
        registry()
    except NoBrokerError as failure:
        sys.exit(str(failure))
