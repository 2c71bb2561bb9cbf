"""Seeds by hand, and what there was in them: ``python -m tests.months FIRST COUNT``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.months.team import Wrong, months


def main(first: int, count: int) -> int:
    """How many seeds failed."""
    counts: Counter[str] = Counter()
    failed: list[int] = []
    begun_s = time.monotonic()
    with TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            try:
                counts += months(seed, Path(folder) / str(seed))
            except Wrong as wrong:
                failed.append(seed)
                sys.stderr.write(f"{wrong}\n\n")
    sys.stdout.write("".join(f"{name:40}{number:8,}\n" for name, number in sorted(counts.items())))
    sys.stdout.write(f"{count} seeds in {time.monotonic() - begun_s:.0f} s, failed: {failed or 'none'}\n")
    return len(failed)


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]))))
