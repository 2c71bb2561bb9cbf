"""What answers over HTTP cost and how fast they are: probes and metrics of a worker, questions to ``tailrace serve`` beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from http.client import HTTPConnection
from itertools import islice
from random import Random
from statistics import median
from threading import Thread

from benchmarks import apps
from benchmarks.apps import counting
from benchmarks.measure import Row, Scale
from benchmarks.served.house import House, Taken, endless
from benchmarks.served.rows import latencies
from benchmarks.served.service import ROOT, Service, logged, port_of, wait_until

PER_S = 2_000
CONNECTIONS = 16
MOST_MS = 20
SCRAPES_PER_S = 20
APP = "benchmarks.apps:counting"


def answers(scale: Scale) -> list[Row]:
    """The three targets of answers over HTTP."""
    with House(counting) as house:
        with house.start(APP, scale.commit_ms, "--http", "127.0.0.1:0") as service:
            service.wait_for_partitions(1)
            events = endless(scale.keys)
            house.take(service, islice(events, scale.keys), "totals")
            scraped = _scraped(service, scale)
            alone, followed = list[Taken](), list[Taken]()
            # In turn: a log and a state that grow must not count for one side alone.
            for number in range(2 * scale.repeats):
                first = number % 2 == 0
                for beside in (first, not first):
                    with _serving(house) if beside else nullcontext():
                        taken = house.take(service, islice(events, scale.served_events), "totals")
                        (followed if beside else alone).append(taken)
        with _serving(house) as port:
            names = apps.keys(scale.keys)
            runs = [_asked(port, names, scale.latency_s) for _ in range(scale.repeats)]
    ratio = median(b.processor_s / a.processor_s for a, b in zip(alone, followed, strict=True))
    return [
        scraped,
        Row(
            case="serve: the worker's processor time per event beside it",
            measured=1e6 * median(one.processor_s / one.events for one in followed),
            unit="us/event",
            target="103 % or less",
            met=ratio <= 1.03,
            ratio=ratio,
            compared_with="the same worker without a follower",
            compared=1e6 * median(one.processor_s / one.events for one in alone),
        ),
        *latencies(f"serve: {PER_S:,} questions/s", runs, MOST_MS, f"{CONNECTIONS} connections"),
    ]


def _scraped(service: Service, scale: Scale) -> Row:
    """What one second of probes and metrics costs an idle worker, as a share of a core."""
    port, many = service.port(), max(2, int(scale.latency_s * SCRAPES_PER_S))
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        began_s, start = service.processor_s(), time.monotonic()
        time.sleep(scale.latency_s)
        idle = (service.processor_s() - began_s) / (time.monotonic() - start)
        began_s, start = service.processor_s(), time.monotonic()
        for number in range(many):
            for path in ("/livez", "/readyz", "/metrics"):
                _get(connection, path)
            time.sleep(max(0.0, start + (number + 1) / SCRAPES_PER_S - time.monotonic()))
        took_s = time.monotonic() - start
        each_s = max(0.0, service.processor_s() - began_s - idle * took_s) / many
    return Row(
        case="probes and metrics once a second, of a core",
        measured=100 * each_s,
        unit="%",
        target="1 % or less",
        met=each_s <= 0.01,
        note=f"{many:,} rounds of /livez, /readyz and /metrics, {SCRAPES_PER_S} a second",
    )


@contextmanager
def _serving(house: House) -> Generator[int]:
    """``tailrace serve`` over the log of a house, once it follows everything. Its port."""
    words = house.folder / "serve"
    path = os.pathsep.join([str(ROOT / "framework"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tailrace", "serve", APP, "--log", str(house.folder / "log")]
    with words.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--http", "127.0.0.1:0", "--log-format", "json"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        )
    try:
        wait_until(lambda: port_of(logged(words)) > 0, "tailrace serve answers")
        port = port_of(logged(words))

        def follows() -> bool:
            with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                return _get(connection, "/readyz") == 200

        wait_until(follows, "tailrace serve follows the log")
        yield port
    finally:
        process.terminate()
        process.wait()


def _asked(port: int, names: list[str], for_s: float) -> list[float]:
    """Ask for random keys at a steady rate. The milliseconds of each, from the moment it was due."""
    took_ms: list[list[float]] = [[] for _ in range(CONNECTIONS)]
    start = time.monotonic() + 0.1

    def ask(number: int) -> None:
        random, many = Random(number), int(PER_S * for_s)
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            for due in range(number, many, CONNECTIONS):
                due_s = start + due / PER_S
                time.sleep(max(0.0, due_s - time.monotonic()))
                _get(connection, f"/actors/Counter/{random.choice(names)}")
                took_ms[number].append(1_000 * (time.monotonic() - due_s))

    threads = [Thread(target=ask, args=(number,)) for number in range(CONNECTIONS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return [one for each in took_ms for one in each]


def _get(connection: HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status
