"""One node of a cluster: a process that is broker and controller, with a folder of its own.

    start     the process is started; the cluster waits until it answers
    stop      SIGTERM: a clean shutdown
    kill      SIGKILL: what the operating system was given stays, as if the process had crashed
    pause     SIGSTOP: its connections stay open and nothing answers; resume: SIGCONT

A node can be started again after it was stopped or killed: at the same address, with the same data.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.kafka.broker.artefacts import NoBrokerError, archive
from tests.runtime.processes import wait_until

BOUND = Path(__file__).with_name("bound.py")
JVM = (
    "-Xms64m",
    "-Xmx512m",
    # A broker of a test lives for seconds: the optimizing compiler would take more time than it saves.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # The classes are those of the jars: to verify each again takes a quarter of a start.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-XX:-UsePerfData",  # a process that is killed would leave its file of counters behind
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    # It lists all settings at each change, so the end of the log would show nothing else.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
)
TAIL = 40


class Node:
    """A node, formatted and not started. What it logs is in ``log``."""

    def __init__(
        self, number: int, folder: Path, java: Path, jars: Path, properties: Mapping[str, str], address: str
    ) -> None:
        self.number = number
        self.address = address
        """Host and port for clients without encryption."""
        self.log = folder / "log.txt"
        self._properties = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        # The JVM unpacks its libraries for compression, and cannot remove them when it is killed. In containers, the file system
        # in memory often executes nothing: then they go to the JVM's own default.
        executes = not os.statvfs(folder).f_flag & os.ST_NOEXEC
        unpacked = [f"-Djava.io.tmpdir={folder}"] if executes else []
        self._java = [str(java), *JVM, *unpacked, "-cp", f"{jars}/*"]
        if (classes := archive(java, jars)).is_file():
            self._java.insert(1, f"-XX:SharedArchiveFile={classes}")
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    def format(self, cluster_id: str, *options: str) -> None:
        """Write what a node must find in its data folder at its first start."""
        tool = [
            *("kafka.tools.StorageTool", "format", "--cluster-id"),
            *(cluster_id, "--config", str(self._properties)),
        ]
        with self.log.open("ab") as log:
            done = subprocess.run(
                [*self._java, *tool, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        if done.returncode != 0:
            raise NoBrokerError(self.report("cannot format its storage"))

    @property
    def pid(self) -> int:
        """The number of its process. It must have been started."""
        assert self._process is not None, f"node {self.number} has not been started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether its process is there; it may be paused."""
        return self._process is not None and self._process.poll() is None

    def start(self, *options: str) -> None:
        """Start the process, which ends with the thread that calls this, and do not wait until it answers. ``options`` are the JVM's."""
        assert not self.runs, f"node {self.number} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-IS",
                    str(BOUND),
                    str(os.getpid()),
                    *self._java,
                    *options,
                    "kafka.Kafka",
                    str(self._properties),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests
            )

    def stop(self, grace_s: float | None = None) -> None:
        """Shut down cleanly, and wait for that. The other nodes must be able to elect a controller meanwhile: without one, a node waits
        for up to five minutes. With ``grace_s`` it is killed if it takes longer, as a supervisor would.
        """
        self._signal(signal.SIGTERM)
        if grace_s is not None:
            with suppress(AssertionError):
                wait_until(lambda: not self.runs, f"node {self.number} has shut down", grace_s)
            self.kill()
        wait_until(lambda: not self.runs, f"node {self.number} has shut down")

    def kill(self) -> None:
        """End the process at once; also a paused one, and one that has ended already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Let the process neither run nor end. All its threads have stopped when this returns."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # the signal alone leaves a thread time to answer

    def resume(self) -> None:
        """Let a paused process run again."""
        self._signal(signal.SIGCONT)

    def wait_until_it_knows(self, nodes: set[int]) -> None:
        """Wait until this node answers and tells clients of all these nodes.

        Raises:
            NoBrokerError: It takes too long, or the process ends meanwhile.
        """

        def knows() -> bool:
            if not self.runs:
                raise NoBrokerError(self.report("has ended"))
            return known_nodes(self.address) >= nodes

        try:
            wait_until(knows, f"node {self.number} tells clients of {nodes}")
        except AssertionError as error:
            raise NoBrokerError(self.report(f"is not ready: {error}")) from error

    def report(self, what: str) -> str:
        """A message with the last lines of its log."""
        tail = self.log.read_text("utf-8", errors="replace").splitlines()[-TAIL:]
        return "\n".join([f"Kafka node {self.number} {what}. The end of {self.log}:", *tail])

    def _signal(self, number: signal.Signals) -> None:
        assert self.runs, self.report("has ended")
        os.kill(self.pid, number)


def known_nodes(address: str) -> set[int]:
    """The nodes that the broker at an address tells clients of; none while it does not answer."""
    host, _, port = address.rpartition(":")
    try:
        # librdkafka would log refused connections, and wait longer after each.
        socket.create_connection((host, int(port)), timeout=5).close()
        return set(AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=5).brokers)
    except (OSError, KafkaException):
        return set()
