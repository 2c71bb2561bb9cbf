"""The jars of the broker and the schema registry, fetched once by Maven as a pom says and kept in the user's cache::

    $XDG_CACHE_HOME/tailrace/kafka-DIGEST/*.jar      (XDG_CACHE_HOME by default: ~/.cache)
    $XDG_CACHE_HOME/tailrace/registry-DIGEST/        (the program as it is distributed, unpacked)

    the folder exists     it is complete: it is filled under another name and renamed at the end
    the pom changes       DIGEST is of the pom's bytes, so it has another folder
    several at once       one fetches under a lock, the others wait

``make kafka`` does this before the tests. A test that finds no folder does it itself, so it needs Maven and a repository then.

``make kafka`` also makes an archive of the classes that a broker loads (class data sharing): with it, a node starts in half of the
processor time. A broker that runs once writes what it has loaded when it shuts down. The archive is of one Java and these jars; a JVM that
cannot use it starts without it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from tailrace.spark.session import check_java

BROKER = Path(__file__).with_name("pom.xml")
REGISTRY = Path(__file__).parents[2] / "registry" / "pom.xml"
FETCH_S = 900.0


class NoBrokerError(RuntimeError):
    """There is no broker, and the message says why. A test that needs one fails with it and is never skipped."""


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
        command = [maven, "--batch-mode", "--quiet", "--no-transfer-progress", "--strict-checksums", goal]
        try:
            subprocess.run(
                [*command, f"-DoutputDirectory={filled}"], cwd=work, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=FETCH_S, check=True,
            )  # fmt: skip
        except subprocess.SubprocessError as error:
            said = getattr(error, "output", "")
            raise NoBrokerError(f"Maven cannot fetch what {pom} names: {error}\n{said}") from error
        filled.rename(folder)


def archive(java: Path, jars: Path) -> Path:
    """Where the archive of this Java and these jars is, or would be."""
    program = java.resolve()
    digest = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    return jars.with_name(f"{jars.name}-{digest}.jsa")


def make_archive(java: Path, jars: Path) -> None:
    """Make the archive if it is not there. The jars must be there.

    Raises:
        NoBrokerError: The broker cannot be started.
    """
    from tests.kafka.broker.cluster import free_ports, properties
    from tests.kafka.broker.node import Node

    found = archive(java, jars)
    if found.is_file():
        return
    with TemporaryDirectory(dir=jars.parent, prefix="classes-") as work:
        folder, made = Path(work) / "node-1", Path(work) / "classes.jsa"
        ports: dict[str, int] = dict(zip(("PLAIN", "CONTROLLER"), free_ports(2), strict=True))
        settings = properties(1, folder / "data", {1: ports}, None, {})
        node = Node(1, folder, java, jars, settings, f"127.0.0.1:{ports['PLAIN']}")
        node.format(secrets.token_hex(11))
        try:
            node.start(f"-XX:ArchiveClassesAtExit={made}")
            node.wait_until_it_knows({1})
            node.stop()
        finally:
            node.kill()
        if made.is_file():  # a Java without its own archive cannot make one
            made.rename(found)


if __name__ == "__main__":
    try:
        make_archive(check_java(), jars())
        registry()
    except NoBrokerError as failure:
        sys.exit(str(failure))
