"""Power cuts and corruptions in numbers, and what became of each: the tables of docs/reliability.md.

    python -m tests.power 2000 [--first-seed N] [--policy commit] [--corruptions 300]

Checks so many crash states of each policy, and so many corruptions. Ends with 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from tests.power.corruption import Stopped, corruption
from tests.power.disk import Recorded
from tests.power.files import DURABLE, POLICIES
from tests.power.scenario import recorded
from tests.power.trials import counted, power_cut


def main() -> int:
    """Print a table for each policy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--corruptions", type=int, default=300)
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="tailrace-power-") as name:
        folder = Path(name)
        for policy in options.policy or POLICIES:
            made = _recorded(folder / policy, policy)

            def cut(seed: int, policy: str = policy, made: Recorded = made) -> str:
                return power_cut(made, policy, made.cut(seed), folder / f"{policy}-{seed}")

            what = f"crash states of {len(made.operations):,} operations under {policy!r}"
            failed |= _say(what, cut, range(options.first_seed, options.first_seed + options.count))
        one, another = (_recorded(folder / name, DURABLE) for name in ("one", "another"))
        stopped = Stopped(one, another, folder / "images")
        seeds = range(options.first_seed, options.first_seed + options.corruptions)
        failed |= _say(
            "corruptions", lambda seed: corruption(stopped, seed, folder / f"corrupt-{seed}"), seeds
        )
    return int(failed)


def _recorded(folder: Path, policy: str) -> Recorded:
    folder.mkdir()
    return recorded(folder, policy)


def _say(what: str, trial: Callable[[int], str], seeds: range) -> bool:
    """Run trials and print how often there was each outcome; whether one failed."""
    begun_s = time.monotonic()
    outcomes, failures = counted(trial, seeds)
    click.echo(f"{len(seeds):,} {what}, in {(time.monotonic() - begun_s) / 60:.1f} minutes")
    for name, count in sorted(outcomes.items()):
        click.echo(f"{count:8,}  {name}")
    for one in failures[:5]:
        click.echo(f"          {one}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
