"""The soak on Kafka is shown able to fail: its services have a mistake, and its checks must find it.

    python -m tests.kafka.soak_mutations [NAME ...]   # all, if none is named; 0 if each is found

Each mistake has a seed. The first fault of the seed's round is the one that makes the mistake visible, if a fault is needed for it at
all. The same round without the mistake must find nothing: ``--without`` runs that. What a mistake in fencing does:

- *A dead owner is not fenced*, or nobody knows whom to fence. The transaction that it has left open stays open until
  ``transaction.timeout.ms``, which is longer than a round. It hides all later records of its partitions: readers of outputs stand still, and
  so does the new owner, if its changelog is among these partitions. No record is doubled: what a zombie commits later needs the metadata of
  the group, which is old, and a restore waits for the end of each transaction that has records of its changelog.
- *Nor does the group refuse it*: a zombie that wakes within its transaction commits what the new owner has done meanwhile, a second time.
- *A new owner publishes watermarks with the ends that it knew before*: a reader that is behind takes them before the last owner's records,
  and these are late.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).parents[2]
_MOST_S = 1_200.0


class Found(NamedTuple):
    """In which round a mistake is found, and what the driver reports then."""

    seed: int
    says: str
    faults: int = 1


_OPEN = "has left open is ended by a new owner"

MISTAKES: dict[str, Found] = {
    "a-producer-that-is-not-named": Found(922, _OPEN),
    "a-dead-owner-that-is-not-fenced": Found(922, _OPEN),
    "a-dead-owner-that-is-not-fenced,commits-without-the-metadata-of-the-group": Found(1240, "stands behind"),
    "the-ends-of-before-a-take-over": Found(1168, "what the second service told"),
}
"""By the names of mutations, with commas between those that are made together."""


def run(names: str, found: Found) -> tuple[int, str]:
    """A round, with mistakes or without; its exit code, and what it has said."""
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.kafka.soak",
            "--rounds", "1", "--seed", str(found.seed), "--faults", str(found.faults),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}", "SOAK_MUTATION": names},
        capture_output=True,
        text=True,
        timeout=_MOST_S,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    """Run the rounds of some mistakes, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*MISTAKES])
    parser.add_argument("--without", action="store_true", help="run the same rounds without the mistakes")
    options = parser.parse_args()
    missed = 0
    for names in options.names:
        found, begun_s = MISTAKES[names], time.monotonic()
        code, said = run("" if options.without else names, found)
        is_right = code == 0 if options.without else code != 0 and found.says in said
        took_s = time.monotonic() - begun_s
        click.echo(f"{names}, seed {found.seed}, {took_s:.0f} s: {'as it must be' if is_right else said}")
        missed += not is_right
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
