"""Seeds of the proof on their own, and what there was in them: ``python -m tests.spark.proof FIRST COUNT``."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tailrace.spark.session import running
from tests.spark.proof.proving import abroad, prove
from tests.spark.proof.seeded import never_synced, short_ways

AT_ONCE = 15


def main(first: int, count: int) -> None:
    setattr(os, "fsync", never_synced)  # noqa: B010 (it takes anything)
    short_ways()
    counts: Counter[str] = Counter()
    begun_s = time.monotonic()
    with (
        TemporaryDirectory() as folder,
        running("local[2,4]", name="proof") as spark,
        abroad(spark, Path(folder) / "marks") as engine,
    ):
        for start in range(first, first + count, AT_ONCE):
            seeds = range(start, min(start + AT_ONCE, first + count))
            counts += prove(engine, seeds, Path(folder) / "cases")
            sys.stderr.write(f"{seeds.stop - first} seeds, {time.monotonic() - begun_s:.0f} s\n")
    sys.stdout.write("".join(f"{name:30}{number:10,}\n" for name, number in sorted(counts.items())))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
