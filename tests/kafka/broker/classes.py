"""An archive of the classes that a broker loads (class data sharing): with it, a node starts in half of the processor time.

made     by ``make kafka``, in the cache: a broker that runs once writes what it has loaded when it shuts down
used     by each node, if it is there
unfit    another Java or other jars: the archive has another name. A JVM that cannot use one starts without it
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory


def archive(java: Path, jars: Path) -> Path:
    """Where the archive of this Java and these jars is, or would be."""
    program = java.resolve()
    digest = sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    return jars.with_name(f"{jars.name}-{digest}.jsa")


def make(java: Path, jars: Path) -> None:
    """Make the archive if it is not there. The jars must be there.

    Raises:
        NoBrokerError: The broker cannot be started.
    """
    from tests.kafka.broker.cluster import free_ports
    from tests.kafka.broker.node import Node
    from tests.kafka.broker.settings import properties

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
