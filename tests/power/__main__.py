"""Power cuts and corruptions in numbers, and what became of each: the tables of docs/reliability.md.

    python -m tests.power 2000 [--first-seed N] [--policy commit] [--only cuts|corruptions]

Of each policy so many crash states are checked, and a quarter as many corruptions. Ends with 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from tests.power.files import POLICIES
from tests.power.scenario import recorded
from tests.power.trials import counted, power_cut


def main() -> int:
    """Print a table for each policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--policy", choices=POLICIES, action="append")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.count)
    failed = False
    with tempfile.TemporaryDirectory(prefix="tailrace-power-") as name:
        folder = Path(name)
        for policy in options.policy or POLICIES:
            (folder / policy).mkdir()
            made = recorded(folder / policy, policy)
            begun_s = time.monotonic()
            outcomes, failures = counted(
                lambda seed, policy=policy, made=made: power_cut(  # type: ignore[misc]
                    made, policy, made.cut(seed), folder / f"{policy}-{seed}"
                ),
                seeds,
            )
            _say(
                f"{policy}, {len(made.operations):,} operations",
                outcomes,
                failures,
                time.monotonic() - begun_s,
            )
            failed = failed or bool(failures)
    return int(failed)


def _say(what: str, outcomes: Counter[str], failures: list[str], seconds: float) -> None:
    click.echo(f"{what}: {outcomes.total():,} in {seconds / 60:.1f} minutes")
    for name, count in outcomes.most_common():
        click.echo(f"{count:8,}  {name}")
    for one in failures[:5]:
        click.echo(f"          {one}")


if __name__ == "__main__":
    sys.exit(main())
