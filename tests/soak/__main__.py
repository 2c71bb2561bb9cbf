"""The long soak: rounds of 25 faults, plain and rich in turn, until the time is over.

    python -m tests.soak --minutes 30 [--seed N]

The seed of a round is the first one plus its number; ``--rounds 1 --seed N`` repeats it. Where mounting is
allowed, log and state are on a small disk of their own, which can be filled.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import click

from tests.soak.disk import continue_with_mounts, mounted
from tests.soak.rounds import Report, summary
from tests.soak.soak import Plan, Soak

_DISK_BYTES = 2 << 30


def main() -> None:
    """Soak, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--faults", type=int, default=25, help="in each round")
    options = parser.parse_args()
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


def _round(seed: int, faults: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="tailrace-soak-") as name:
        folder = Path(name)
        with mounted(folder / "disk", _DISK_BYTES) as disk:
            plan = Plan(seed, rich=bool(seed % 2), faults=faults, disk=disk)
            return Soak(folder / "disk", plan, folder / "said").run()


if __name__ == "__main__":
    main()
