"""The long soak: rounds of 25 faults, plain and rich in turn, until the time is over; and the long race.

    python -m tests.soak --minutes 30 [--seed N]
    python -m tests.soak --race --minutes 10 [--seed N]    # processes on one log, without services: see race.py

The seed of a round is the first one plus its number; ``--rounds 1 --seed N`` repeats it. Where mounting is
allowed, log and state are on a small disk of their own, which can be filled. A race ends with 1 if something is wrong, and
leaves the folder of that round.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from tests.soak.disk import continue_with_mounts, mounted
from tests.soak.race import Race
from tests.soak.rounds import Report, summary
from tests.soak.soak import Plan, Soak

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
    continue_with_mounts("tests.soak")
    begun_s = time.monotonic()
    reports: list[Report] = []
    while len(reports) < options.rounds and (
        time.monotonic() - begun_s < 60 * options.minutes or not reports
    ):
        seed = options.seed + len(reports)
        reports.append(_round(seed, options.faults))
        click.echo(reports[-1])
    click.echo(summary(reports, time.monotonic() - begun_s))
    return 0


def _round(seed: int, faults: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="tailrace-soak-") as name:
        folder = Path(name)
        with mounted(folder / "disk", _DISK_BYTES) as disk:
            plan = Plan(seed, rich=bool(seed % 2), faults=faults, disk=disk)
            return Soak(folder / "disk", plan, folder / "said").run()


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
