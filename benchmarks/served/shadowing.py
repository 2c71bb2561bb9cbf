"""What a shadow costs the service that it follows: processor time per event of the service's own process, alone and followed, in turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from statistics import median, quantiles

import msgspec

from benchmarks.apps import counting
from benchmarks.measure import Row, Scale
from benchmarks.served.house import House, Taken, endless
from benchmarks.served.service import ROOT, wait_until

APP = "benchmarks.apps:counting"


def shadowing(scale: Scale) -> list[Row]:
    """A worker with a shadow of the same code, which compares once per second, and the same worker while the shadow is paused."""
    with House(counting) as house, house.start(APP, scale.commit_ms) as service:
        service.wait_for_partitions(1)
        events = endless(scale.keys)
        house.take(service, islice(events, scale.keys), "totals")
        alone, followed = list[Taken](), list[Taken]()
        with _shadow(house) as shadow:
            for number in range(2 * scale.repeats):
                first = number % 2 == 0
                for beside in (first, not first):
                    if not beside:
                        os.killpg(shadow, signal.SIGSTOP)
                    taken = house.take(service, islice(events, scale.served_events), "totals")
                    (followed if beside else alone).append(taken)
                    os.killpg(shadow, signal.SIGCONT)
                    _caught_up(house)  # it holds no lock on the log when it is paused
    ratios = [b.processor_s / a.processor_s for a, b in zip(alone, followed, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return [
        Row(
            case="shadow: the worker's processor time per event beside it",
            measured=1e6 * median(one.processor_s / one.events for one in followed),
            unit="us/event",
            target="under 103 %",
            met=median(ratios) < 1.03,
            ratio=median(ratios),
            compared_with="the same worker without a shadow",
            compared=1e6 * median(one.processor_s / one.events for one in alone),
            note=f"{len(ratios)} pairs: the middle half from {100 * low:.1f} to {100 * high:.1f} %",
        )
    ]


def _caught_up(house: House) -> None:
    """Wait until the shadow has compared all outputs of the service."""
    file = house.folder / "shadow" / "report.json"

    def compared() -> int:
        return msgspec.json.decode(file.read_bytes())["counts"]["outputs"][0] if file.exists() else -1

    wait_until(lambda: compared() == house.records("totals"), "the shadow has caught up")


@contextmanager
def _shadow(house: House) -> Generator[int]:
    """A shadow that has caught up. Its process group."""
    command = ["run", APP, "--shadow", APP, "--every", "1s", "--log", str(house.folder / "log")]
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace", *command, "--to", str(house.folder / "shadow")],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _caught_up(house)
        yield process.pid
    finally:
        process.send_signal(signal.SIGCONT)  # a process that is paused does not end
        process.terminate()
        process.wait()
