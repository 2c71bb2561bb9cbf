"""The long soak: rounds of 25 faults, plain and rich in turn, until the time is over; and the long race.

    python -m tests.soak --minutes 30 [--seed N]
    python -m tests.soak --race --minutes 10 [--seed N]    # processes on one log, without services: see race.py

The seed of a round is the first one plus its number; ``--rounds 1 --seed N`` repeats it. Where mounting is
allowed, log and state are on a small disk of their own, which can be filled. A race ends with 1 if something is wrong, and
leaves the folder of that round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from tests.soak.race import Race
from tests.soak.soak import Disk, Plan, Report, Soak
from tests.state.test_outages import may_mount

_INSIDE = "SOAK_HAS_MOUNTS_OF_ITS_OWN"
_DISK_BYTES = 2 << 30
_RACE_S = 20
_SHOWN = 10


def main() -> int:
    """Soak, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--faults", type=int, default=25, help="in each round")
    parser.add_argument("--race", action="store_true", help=f"processes on one log, in rounds of {_RACE_S} s")
    options = parser.parse_args()
    if options.race:
        return _races(options.seed, options.minutes, options.rounds)
    how = may_mount() if _INSIDE not in os.environ else None
    if how is not None:
        os.environ[_INSIDE] = "1"
        os.execvp(how[0], [*how, sys.executable, "-m", "tests.soak", *sys.argv[1:]])
    begun_s = time.monotonic()
    reports: list[Report] = []
    while len(reports) < options.rounds and (
        time.monotonic() - begun_s < 60 * options.minutes or not reports
    ):
        seed = options.seed + len(reports)
        reports.append(_round(seed, options.faults))
        _say(reports[-1], f"round {len(reports)}, seed {seed}")
    _sum_up(reports, time.monotonic() - begun_s)
    return 0


def _round(seed: int, faults: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="tailrace-soak-") as name:
        folder = Path(name)
        (folder / "disk").mkdir()
        disk = None
        if _INSIDE in os.environ:
            disk = Disk(folder / "disk", _DISK_BYTES)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "soak", str(disk.mounted_at)]
            subprocess.run(mount, check=True)
        try:
            plan = Plan(seed, rich=bool(seed % 2), faults=faults, disk=disk)
            return Soak(folder / "disk", plan, folder / "said").run()
        finally:
            if disk is not None:
                subprocess.run(["umount", disk.mounted_at], check=True)


def _say(report: Report, what: str) -> None:
    figures = report.figures
    click.echo(
        f"{what}, {report.variant}: {report.faults.total()} faults, {report.starts} starts, {report.seconds:.0f} s, "
        f"{figures.events:,} events, {figures.outputs:,} outputs, {figures.timers:,} timers, "
        f"{figures.commits:,} commits: all as it must be"
    )


def _sum_up(reports: list[Report], seconds: float) -> None:
    faults = sum((one.faults for one in reports), Counter[str]())
    for name, count in faults.most_common():
        click.echo(f"{count:6}  {name}")
    click.echo(
        f"{faults.total()} faults in {seconds / 60:.1f} minutes, {len(reports)} rounds, "
        f"{sum(one.figures.events for one in reports):,} events, "
        f"{sum(one.figures.timers for one in reports):,} timers: nothing lost, nothing repeated"
    )


def _races(first_seed: int, minutes: float, rounds: int) -> int:
    begun_s = time.monotonic()
    figures = Counter[str]()
    wrong = done = 0
    while done < rounds and (time.monotonic() - begun_s < 60 * minutes or not done):
        folder = Path(tempfile.mkdtemp(prefix="tailrace-race-"))
        report = Race(folder, first_seed + done, _RACE_S).run()
        done += 1
        figures += report.figures
        for one in report.violations[:_SHOWN]:
            click.echo(f"seed {report.seed}: {one}")
        if report.violations:
            wrong += len(report.violations)
            click.echo(f"seed {report.seed}: {len(report.violations)} violations; the round is in {folder}")
        else:
            shutil.rmtree(folder)
    for name, count in figures.most_common():
        click.echo(f"{count:10,}  {name}")
    click.echo(f"{done} rounds in {(time.monotonic() - begun_s) / 60:.1f} minutes: {wrong} violations")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
